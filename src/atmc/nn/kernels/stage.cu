// A stage of ResNet++ (residual blocks of one shape) in four kernels: pack the weights, forward, backward, weight
// gradients. Hopper only (wgmma). Compiled at run time for one C (channels) and one H (height = width of the image).
//
// Why. With 32 channels a convolution at batch 128 is bound by moving its input nine times from the second-level cache,
// and a block by writing and reading every intermediate. Here one thread block holds one image in shared memory and runs
// all convolutions of the stage on it; weights stream in, and what the backward pass needs streams out.
//
// image.cuh has the layout of an image, and hopper.cuh the instructions that only a Hopper has; they go in front.
//
// Block: a -> u = conv1(a) + bias, h = selu(u), x += conv2(h), a = selu(x).  x stays in registers, in float32.
// A stage may be entered in the middle of a block whose first convolution changed the resolution: h and the shortcut x are
// given, and the first convolution here is its conv2.

constexpr int POS = LEAD + G * PLANE, IMAGE = POS * 16;

// ---- what forward and backward share ----------------------------------------------------------------------------

constexpr int SPLITS = C / NB, UNITS = TILES * SPLITS / WGS;  // each warpgroup has so many units
constexpr int CHUNKS = 9 / TAPS, CHUNK = TAPS * C * C * 2;  // weights arrive in chunks of TAPS taps, SLOTS of them at a time
static_assert(UNITS * WGS == TILES * SPLITS && (UNITS == 1 || (CHUNKS == 1 && WGS == H / 8 && SPLITS == 1)), "shape");

// A warp of its own feeds the ring, unless a chunk is a whole convolution: then there is a moment when all are done with it,
// and the registers of another warp are better spent on x.
constexpr bool FEEDER = CHUNKS > 1;
constexpr int THREADS = WGS * 128, ALL_THREADS = THREADS + (FEEDER ? 32 : 0);

struct Shared {
  u32 first, second, weights, full, empty, sums;  // two images, the ring of weights and its barriers, bias gradients
};
constexpr int SHARED_BYTES = 2 * IMAGE + SLOTS * CHUNK + WGS * 4 * NB * 4 + 128;

__device__ __forceinline__ Shared carve(char* memory) {
  Shared s;
  s.first = shared_address(memory);
  s.second = s.first + IMAGE;
  s.weights = s.second + IMAGE;
  s.sums = s.weights + SLOTS * CHUNK;
  s.full = s.sums + WGS * 4 * NB * 4;
  s.empty = s.full + 8 * SLOTS;
  return s;
}

__device__ __forceinline__ void start(char* memory, const Shared& s) {
  for (int i = threadIdx.x; i < 2 * POS; i += blockDim.x) reinterpret_cast<uint4*>(memory)[i] = make_uint4(0, 0, 0, 0);
  if (threadIdx.x == 0)
    for (int i = 0; i < SLOTS; i++) {
      barrier_init(s.full + 8 * i, 1);
      barrier_init(s.empty + 8 * i, WGS);
    }
  fence_async();
  barriers_made();
  __syncthreads();
}

// Chunk q of the weights into its slot. Backward goes through the convolutions from the end.
template <bool BACKWARD> __device__ __forceinline__ void fetch(const Shared& s, const u16* weights, int convolutions, int q) {
  const int slot = q % SLOTS, conv = q / CHUNKS;
  barrier_expect(s.full + 8 * slot, CHUNK);
  const char* from = reinterpret_cast<const char*>(weights) + (size_t)(BACKWARD ? convolutions - 1 - conv : conv) * CHUNKS * CHUNK;
  load_bulk(s.weights + slot * CHUNK, from + (q % CHUNKS) * CHUNK, CHUNK, s.full + 8 * slot);
}
template <bool BACKWARD> __device__ __forceinline__ void feed(const Shared& s, const u16* weights, int convolutions) {
  if (threadIdx.x % 32) return;
  for (int q = 0; q < convolutions * CHUNKS; q++) {
    if (q >= SLOTS) barrier_wait(s.empty + 8 * (q % SLOTS), (q / SLOTS - 1) & 1);
    fetch<BACKWARD>(s, weights, convolutions, q);
  }
}

// One unit of a 3 × 3 convolution of the image at `image`, or of the transposed one.
template <bool TRANSPOSED>
__device__ __forceinline__ void convolve(float (&acc)[NB / 2], const Shared& s, u32 image, const Unit& unit, int conv) {
  constexpr u32 BK = TRANSPOSED ? 128 : C * 16, BN = TRANSPOSED ? C * 16 : 128;
  const u32 patch = uniform((image + unit.tile) >> 4), columns = (s.weights >> 4) + unit.split * (TRANSPOSED ? NB / 8 * C : NB);
#pragma unroll
  for (int chunk = 0; chunk < CHUNKS; chunk++) {
    int q = conv * CHUNKS + chunk, slot = q % SLOTS;
    barrier_wait(s.full + 8 * slot, q / SLOTS & 1);
    mma_fence();
    const u32 weights = uniform(columns + slot * (CHUNK / 16));
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
      const int tap = chunk * TAPS + t, shift = (tap / 3 - 1) * P + tap % 3 - 1;
#pragma unroll
      for (int k = 0; k < C / 16; k++)
        mma<0, TRANSPOSED>(acc, matrix<PLANE * 16, P * 16>(patch + (TRANSPOSED ? -shift : shift) + k * 2 * PLANE),
                           matrix<BK, BN>(weights + t * (C * C / 8) + (TRANSPOSED ? k * 16 : k * 2 * C)), tap + k > 0);
    }
    mma_commit();
    if (chunk > 0) {
      mma_wait<1>();
      if (threadIdx.x % 128 == 0) barrier_arrive(s.empty + 8 * ((q - 1) % SLOTS));
    }
  }
  mma_wait<0>();
  settled(acc);
  if (FEEDER && threadIdx.x % 128 == 0) barrier_arrive(s.empty + 8 * ((conv * CHUNKS + CHUNKS - 1) % SLOTS));
}

// The image in shared memory is complete; what is being saved from it or its neighbour has been read; and the weights of
// convolution `conv` are done with (-1: it was none).
template <bool BACKWARD> __device__ __forceinline__ void image_done(const Shared& s, const u16* weights, int convolutions, int conv) {
  if (threadIdx.x == 0) stores_read();
  fence_async();
  group_barrier(THREADS);
  if (!FEEDER && threadIdx.x == 0 && conv >= 0 && conv + SLOTS < convolutions)
    fetch<BACKWARD>(s, weights, convolutions, conv + SLOTS);
}

// ---- forward ----------------------------------------------------------------------------------------------------

// x += the convolution of the image `from`; selu(x) becomes the image `to`, or the output.
__device__ __forceinline__ void add_branch(float (&x)[UNITS][NB / 2], const Shared& s, u32 from, u32 to, u16* output,
                                           const Unit& mine, int conv) {
#pragma unroll
  for (int u = 0; u < UNITS; u++) {
    const Unit unit = later(mine, u);
    float acc[NB / 2];
    convolve<false>(acc, s, from, unit, conv);
#pragma unroll
    for (int e = 0; e < NB / 4; e++) {
      x[u][2 * e] += acc[2 * e], x[u][2 * e + 1] += acc[2 * e + 1];
      u32 pair = pack(selu(x[u][2 * e]), selu(x[u][2 * e + 1]));
      if (output)
        *reinterpret_cast<u32*>(output + unit.pixel + pixel_at(e / 2, e % 2)) = pair;
      else
        store_shared(to + unit.element + element_at(e / 2, e % 2), pair);
    }
  }
}

// input: the stream x, NHWC. entry: h of a block that was begun elsewhere, or null. output: selu of the stream after the
// last block, NHWC. saved: [convolutions][batch] images, the input of each, or null.
extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
    stage_forward(const u16* input, const u16* entry, const u16* weights, const float* bias, u16* output, u16* saved, int blocks) {
  extern __shared__ __align__(128) char memory[];
  const Shared s = carve(memory);
  start(memory, s);
  const int first = entry ? 1 : 0, convolutions = 2 * blocks + first;
  if (FEEDER && uniform(threadIdx.x / 128) >= WGS) {
    feed<false>(s, weights, convolutions);
    return;
  }
  if (!FEEDER && threadIdx.x == 0)
    for (int q = 0; q < SLOTS && q < convolutions; q++) fetch<false>(s, weights, convolutions, q);
  const size_t image = blockIdx.x;
  input += image * H * H * C;
  output += image * H * H * C;
  const Unit mine = first_unit();
  float x[UNITS][NB / 2];
#pragma unroll
  for (int u = 0; u < UNITS; u++) {
    const Unit unit = later(mine, u);
#pragma unroll
    for (int e = 0; e < NB / 4; e++) {
      u32 pair = *reinterpret_cast<const u32*>(input + unit.pixel + pixel_at(e / 2, e % 2));
      x[u][2 * e] = low(pair), x[u][2 * e + 1] = high(pair);
      if (entry) {
        u32 h = *reinterpret_cast<const u32*>(entry + image * H * H * C + unit.pixel + pixel_at(e / 2, e % 2));
        store_shared(s.second + unit.element + element_at(e / 2, e % 2), h);
      } else {
        store_shared(s.first + unit.element + element_at(e / 2, e % 2), pack(selu(low(pair)), selu(high(pair))));
      }
    }
  }
  image_done<false>(s, weights, convolutions, -1);
  if (entry) {
    if (saved && threadIdx.x == 0) store_bulk(saved + image * POS * 8, s.second, IMAGE);
    add_branch(x, s, s.second, s.first, nullptr, mine, 0);
    image_done<false>(s, weights, convolutions, 0);
  }
  for (int block = 0; block < blocks; block++) {
    const int conv = first + 2 * block;
    if (saved && threadIdx.x == 0) store_bulk(saved + ((size_t)conv * gridDim.x + image) * POS * 8, s.first, IMAGE);
    const float* b = bias + block * C + threadIdx.x % 4 * 2;
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      const Unit unit = later(mine, u);
      float acc[NB / 2];
      convolve<false>(acc, s, s.first, unit, conv);
#pragma unroll
      for (int j = 0; j < NB / 8; j++) {
        float2 shift = *reinterpret_cast<const float2*>(b + unit.split * NB + j * 8);
#pragma unroll
        for (int i = 0; i < 2; i++)
          store_shared(s.second + unit.element + element_at(j, i),
                       pack(selu(acc[4 * j + 2 * i] + shift.x), selu(acc[4 * j + 2 * i + 1] + shift.y)));
      }
    }
    image_done<false>(s, weights, convolutions, conv);
    if (saved && threadIdx.x == 0) store_bulk(saved + ((size_t)(conv + 1) * gridDim.x + image) * POS * 8, s.second, IMAGE);
    add_branch(x, s, s.second, s.first, block == blocks - 1 ? output : nullptr, mine, conv + 1);
    image_done<false>(s, weights, convolutions, conv + 1);
  }
  if (threadIdx.x == 0) stores_done();
}

// ---- backward ---------------------------------------------------------------------------------------------------

// grad_output and output: NHWC. saved: forward's. grads: [convolutions][batch] images, the gradient of each one's output.
// grad_bias: [batch][blocks][C], to be summed over the batch. grad_input: NHWC. grad_entry: NHWC, or null if there was none.
extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
    stage_backward(const u16* grad_output, const u16* output, const u16* weights, const u16* saved, u16* grads,
                   float* grad_bias, u16* grad_input, u16* grad_entry, int blocks) {
  extern __shared__ __align__(128) char memory[];
  const Shared s = carve(memory);
  start(memory, s);
  const int first = grad_entry ? 1 : 0, convolutions = 2 * blocks + first;
  if (FEEDER && uniform(threadIdx.x / 128) >= WGS) {
    feed<true>(s, weights, convolutions);
    return;
  }
  if (!FEEDER && threadIdx.x == 0)
    for (int q = 0; q < SLOTS && q < convolutions; q++) fetch<true>(s, weights, convolutions, q);
  const size_t image = blockIdx.x;
  grad_output += image * H * H * C;
  output += image * H * H * C;
  grad_input += image * H * H * C;
  const Unit mine = first_unit();
  float g[UNITS][NB / 2];  // the gradient of the stream
#pragma unroll
  for (int u = 0; u < UNITS; u++) {
    const Unit unit = later(mine, u);
#pragma unroll
    for (int e = 0; e < NB / 4; e++) {
      u32 da = *reinterpret_cast<const u32*>(grad_output + unit.pixel + pixel_at(e / 2, e % 2));
      u32 a = *reinterpret_cast<const u32*>(output + unit.pixel + pixel_at(e / 2, e % 2));
      g[u][2 * e] = low(da) * selu_slope(low(a)), g[u][2 * e + 1] = high(da) * selu_slope(high(a));
      store_shared(s.first + unit.element + element_at(e / 2, e % 2), pack(g[u][2 * e], g[u][2 * e + 1]));
    }
  }
  image_done<true>(s, weights, convolutions, -1);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int block = blocks - 1; block >= 0; block--) {
    const int conv = 2 * (blocks - 1 - block), number = first + 2 * block;
    const size_t at1 = ((size_t)number * gridDim.x + image) * POS * 8;        // conv1's input, a; its output, u
    const size_t at2 = ((size_t)(number + 1) * gridDim.x + image) * POS * 8;  // conv2's input, h; its output
    if (threadIdx.x == 0) store_bulk(grads + at2, s.first, IMAGE);
    float sum[NB / 4];
#pragma unroll
    for (int e = 0; e < NB / 4; e++) sum[e] = 0.f;
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      const Unit unit = later(mine, u);
      const char* from = reinterpret_cast<const char*>(saved + at2) + unit.element;
      u32 value[NB / 4];
#pragma unroll
      for (int e = 0; e < NB / 4; e++) value[e] = *reinterpret_cast<const u32*>(from + element_at(e / 2, e % 2));
      float acc[NB / 2];
      convolve<true>(acc, s, s.first, unit, conv);
#pragma unroll
      for (int e = 0; e < NB / 4; e++) {
        float left = acc[2 * e] * selu_slope(low(value[e])), right = acc[2 * e + 1] * selu_slope(high(value[e]));
        sum[e / 2 * 2] += left, sum[e / 2 * 2 + 1] += right;
        store_shared(s.second + unit.element + element_at(e / 2, e % 2), pack(left, right));
      }
    }
    // Bias gradients: over a warp's pixels here, over the warps below, in a fixed order.
#pragma unroll
    for (int e = 0; e < NB / 4; e++) {
#pragma unroll
      for (int over = 4; over < 32; over *= 2) sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], over);
      if (lane < 4) store_shared(s.sums + (warp * NB + e / 2 * 8 + lane * 2 + e % 2) * 4, __float_as_uint(sum[e]));
    }
    image_done<true>(s, weights, convolutions, conv);
    if (threadIdx.x < C) {
      // Units of one split belong to the warpgroups wg with (wg / TILES) % SPLITS == split, or to all of them.
      float total = 0.f;
      for (int w = 0; w < WGS * 4; w++)
        if (SPLITS == 1 || w / 4 / TILES == (int)threadIdx.x / NB) total += load_shared(s.sums + (w * NB + threadIdx.x % NB) * 4);
      grad_bias[(image * blocks + block) * C + threadIdx.x] = total;
    }
    if (threadIdx.x == 0) store_bulk(grads + at1, s.second, IMAGE);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      const Unit unit = later(mine, u);
      const char* from = reinterpret_cast<const char*>(saved + at1) + unit.element;
      u32 value[NB / 4];
#pragma unroll
      for (int e = 0; e < NB / 4; e++) value[e] = *reinterpret_cast<const u32*>(from + element_at(e / 2, e % 2));
      float acc[NB / 2];
      convolve<true>(acc, s, s.second, unit, conv + 1);
#pragma unroll
      for (int e = 0; e < NB / 4; e++) {
        g[u][2 * e] += acc[2 * e] * selu_slope(low(value[e]));
        g[u][2 * e + 1] += acc[2 * e + 1] * selu_slope(high(value[e]));
        u32 pair = pack(g[u][2 * e], g[u][2 * e + 1]);
        if (block == 0) *reinterpret_cast<u32*>(grad_input + unit.pixel + pixel_at(e / 2, e % 2)) = pair;
        store_shared(s.first + unit.element + element_at(e / 2, e % 2), pair);
      }
    }
    image_done<true>(s, weights, convolutions, conv + 1);
  }
  if (grad_entry) {
    if (threadIdx.x == 0) store_bulk(grads + image * POS * 8, s.first, IMAGE);
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      const Unit unit = later(mine, u);
      float acc[NB / 2];
      convolve<true>(acc, s, s.first, unit, 2 * blocks);
#pragma unroll
      for (int e = 0; e < NB / 4; e++)
        *reinterpret_cast<u32*>(grad_entry + image * H * H * C + unit.pixel + pixel_at(e / 2, e % 2)) =
            pack(acc[2 * e], acc[2 * e + 1]);
    }
  }
  if (threadIdx.x == 0) stores_done();
}

// ---- weight gradients -------------------------------------------------------------------------------------------

// One thread block: BM output × BN input channels of one convolution, over some images. Three warpgroups, one for each
// row of the kernel; 16 pixels (8 columns of 2 rows) are the K of one instruction. With 32 channels half of M is unused.
constexpr int BM = C < 64 ? C : 64, BN = BM, BLOCKS = (C / BM) * (C / BN);
constexpr int ROWS = H < 16 ? H : 16, SLICES = H / ROWS;  // an image comes in slices of rows, the input with one more on each side
constexpr int DY_PLANE = ROWS * P, X_PLANE = (ROWS + 2) * P + 1;
constexpr int DY_BYTES = BM / 8 * DY_PLANE * 16, SLICE = DY_BYTES + BN / 8 * X_PLANE * 16;
constexpr int RING = 3, WEIGHT_SHARED_BYTES = RING * SLICE + 64;

extern "C" __global__ void __launch_bounds__(384 + 32, 1)
    stage_weights(const u16* saved, const u16* grads, float* partial, int convolutions, int batch) {
  extern __shared__ __align__(128) char memory[];
  const u32 ring = shared_address(memory), full = ring + RING * SLICE, empty = full + 8 * RING;
  if (threadIdx.x == 0)
    for (int i = 0; i < RING; i++) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, 3);
    }
  barriers_made();
  __syncthreads();
  const int conv = blockIdx.x / BLOCKS, block = blockIdx.x % BLOCKS, m = block / (C / BN), n = block % (C / BN);
  const int first = (int)((long long)batch * blockIdx.y / gridDim.y), end = (int)((long long)batch * (blockIdx.y + 1) / gridDim.y);
  const int slices = (end - first) * SLICES;
  if (uniform(threadIdx.x / 128) >= 3) {
    const int lane = threadIdx.x % 32;
    for (int q = 0; q < slices; q++) {
      const int slot = q % RING, row = q % SLICES * ROWS;
      const size_t image = ((size_t)conv * batch + first + q / SLICES) * POS;
      if (q >= RING) barrier_wait(empty + 8 * slot, (q / RING - 1) & 1);
      if (lane == 0) barrier_expect(full + 8 * slot, SLICE);
      __syncwarp();
      const u32 to = ring + slot * SLICE;
      if (lane < BM / 8)
        load_bulk(to + lane * DY_PLANE * 16, grads + (image + LEAD + (m * BM / 8 + lane) * PLANE + row * P) * 8, DY_PLANE * 16,
                  full + 8 * slot);
      else if (lane < BM / 8 + BN / 8)
        load_bulk(to + DY_BYTES + (lane - BM / 8) * X_PLANE * 16,
                  saved + (image + LEAD + (n * BN / 8 + lane - BM / 8) * PLANE + (row - 1) * P - 1) * 8, X_PLANE * 16,
                  full + 8 * slot);
    }
    return;
  }
  const int group = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  float acc[3][BN / 2] = {};
  for (int q = 0; q < slices; q++) {
    const int slot = q % RING;
    barrier_wait(full + 8 * slot, q / RING & 1);
    const u32 dy = (ring + slot * SLICE) >> 4, x = dy + DY_BYTES / 16 + group * P;
#pragma unroll 1
    for (int r = 0; r < ROWS; r += 2) {
      mma_fence();
#pragma unroll
      for (int c = 0; c < H; c += 8)
#pragma unroll
        for (int t = 0; t < 3; t++)
          mma<1, 1>(acc[t], matrix<P * 16, DY_PLANE * 16>(dy + r * P + c),
                    matrix<P * 16, X_PLANE * 16>(x + r * P + c + t), 1);
      mma_commit();
    }
    mma_wait<1>();  // all but this slice's last rows
    if (q > 0 && threadIdx.x % 128 == 0) barrier_arrive(empty + 8 * ((q - 1) % RING));
  }
  mma_wait<0>();
#pragma unroll
  for (int t = 0; t < 3; t++) settled(acc[t]);
  partial += ((size_t)blockIdx.y * convolutions + conv) * C * 9 * C;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = warp * 16 + lane / 4 + 8 * i;
    if (row < BM)
#pragma unroll
      for (int t = 0; t < 3; t++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
          *reinterpret_cast<float2*>(partial + ((m * BM + row) * 9 + group * 3 + t) * C + n * BN + j * 8 + lane % 4 * 2) =
              make_float2(acc[t][4 * j + 2 * i], acc[t][4 * j + 2 * i + 1]);
  }
}

// Weights [convolution][out][tap][in] to [convolution][tap][in/8][out][8], 16 bytes a thread.
extern "C" __global__ void stage_pack(const uint4* weights, uint4* packed, int count) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const int conv = at / (9 * G * C), rest = at % (9 * G * C), tap = rest / (G * C), plane = rest / C % G, out = rest % C;
  packed[at] = weights[conv * (9 * G * C) + (out * 9 + tap) * G + plane];
}
