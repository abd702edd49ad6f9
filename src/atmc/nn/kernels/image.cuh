// What the kernels of stage.cu and transition.cu share: how an image lies in memory, SELU, who computes which part of an
// output, and the sum of partial results. Compiled for one C (channels) and one H (height = width) of the output.
//
// Layout of an image, in shared memory and where it is saved: [C/8 planes][H+1 rows][H+1 columns][8 channels], bf16, after
// a lead-in of H+2 positions. The last column and row are zero: they are the padding on the right of one row and on the
// left of the next, below one plane and above the next. So
// - a tap of a convolution is a constant offset;
// - 8 neighbouring pixels of a plane are one "core matrix" of wgmma (128 contiguous bytes) at any offset;
// - a patch of 8 × 8 pixels is the M = 64 of one instruction, its rows one stride apart;
// - the same bytes serve as an operand with channels or with pixels as the inner dimension (weight gradients);
// - accumulators go back with conflict-free stores, and an image goes to global memory in one bulk copy.
//
// Instructions that only a Hopper has are in hopper.cuh; tests/nn/emulate.h has the same on a CPU.

constexpr int G = C / 8, P = H + 1, PLANE = (H + 1) * P, LEAD = P + 1;
constexpr int TILES = (H / 8) * (H / 8);
constexpr float LAMBDA = 1.0507009873554805f, LAMBDA_ALPHA = 1.7580993408473766f, LOG2E = 1.4426950408889634f;

__device__ __forceinline__ float selu(float v) {
  return v > 0.f ? LAMBDA * v : fmaf(LAMBDA_ALPHA, exp2_fast(v * LOG2E), -LAMBDA_ALPHA);
}
// The derivative of selu where it took the value y.
__device__ __forceinline__ float selu_slope(float y) { return y > 0.f ? LAMBDA : y + LAMBDA_ALPHA; }

// A unit of work of one warpgroup: the NB output channels `split` of the patch `tile`.
struct Unit {
  u32 tile;     // bytes to the patch's first pixel, first plane
  u32 element;  // bytes to this thread's first element (in shared and in saved images)
  int pixel;    // this thread's first element in an NHWC image
  u32 split;
};
// A warpgroup's first unit; its others are the patches below, 8 rows apart.
__device__ __forceinline__ Unit first_unit() {
  const int group = uniform(threadIdx.x / 128), tile = group % TILES, split = group / TILES;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int row = tile / (H / 8) * 8, column = tile % (H / 8) * 8;
  Unit unit;
  unit.tile = (LEAD + row * P + column) * 16;
  unit.element = (LEAD + split * (NB / 8) * PLANE + (row + 2 * warp) * P + column + lane / 4) * 16 + lane % 4 * 4;
  unit.pixel = ((row + 2 * warp) * H + column + lane / 4) * C + split * NB + lane % 4 * 2;
  unit.split = split;
  return unit;
}
__device__ __forceinline__ Unit later(const Unit& unit, int u) {
  return {unit.tile + u * 8 * P * 16, unit.element + u * 8 * P * 16, unit.pixel + u * 8 * H * C, unit.split};
}
// Element (j, i) of a unit: channels 8j.. of row i; registers 4j + 2i and the next.
__device__ __forceinline__ constexpr u32 element_at(int j, int i) { return (j * PLANE + i * P) * 16; }
__device__ __forceinline__ constexpr int pixel_at(int j, int i) { return i * H * C + j * 8; }

// Sum over parts, to bf16. Four elements a thread.
extern "C" __global__ void sum_parts(const float4* partial, uint2* out, int parts, int quads) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= quads) return;
  float4 sum = partial[at];
  for (int p = 1; p < parts; p++) {
    const float4 v = partial[(size_t)p * quads + at];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  out[at] = make_uint2(pack(sum.x, sum.y), pack(sum.z, sum.w));
}
