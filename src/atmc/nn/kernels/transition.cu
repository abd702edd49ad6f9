// How a stage of ResNet++ that halves the resolution begins, in four kernels: pack the weights, forward, backward, weight
// gradients. Hopper only (wgmma). Compiled at run time for the output's C (channels) and H (height = width); the input a
// has half the channels and twice the height and width.
//
// h = selu(conv(a) + bias), 3 × 3;  s = project(a) + bias, 1 × 1;  both of stride 2.
//
// One thread block has one image and all weights in shared memory. The input is held as four images of the output's size,
// for even and odd rows and columns: a tap of a strided convolution is then, again, a constant offset (row 2r + dy - 1 is
// even row r for dy = 1, odd row r for dy = 2, odd row r - 1 for dy = 0), and its transpose four convolutions without gaps.
// The four images have as many channels together as the two gradients of the outputs: both are 2 G planes.
//
// image.cuh has the layout of an image, and hopper.cuh the instructions that only a Hopper has; they go in front.

constexpr int INPUTS = C / 2, IG = INPUTS / 8;
constexpr int POS = LEAD + 2 * G * PLANE, IMAGES = POS * 16;
constexpr int PRODUCTS = 10, TAP = INPUTS * C * 2;  // nine taps and the projection; bytes of the weights of one
constexpr int THREADS = WGS * 128, BACK_THREADS = 512;
static_assert(WGS == TILES * (C / NB) && (TILES == 4 || (TILES == 1 && NB == INPUTS)), "shape");

// Which of the four images a product reads (2 if rows are odd, 1 if columns are), and how far before its output's pixel.
__device__ __forceinline__ constexpr int parity(int tap) { return tap == 9 ? 0 : 2 * (tap / 3 != 1) + (tap % 3 != 1); }
__device__ __forceinline__ constexpr int before(int tap) { return tap == 9 ? 0 : (tap / 3 == 0) * P + (tap % 3 == 0); }

struct __align__(16) Eight {  // channels
  u32 pair[4];
};
// Where the eight channels number `at` of an NHWC image are kept: of an input, in one of its four images; of an output.
__device__ __forceinline__ Eight* input_place(char* memory, int at) {
  const int plane = at % IG, column = at / IG % (2 * H), row = at / IG / (2 * H);
  return reinterpret_cast<Eight*>(memory) + LEAD + ((row % 2 * 2 + column % 2) * IG + plane) * PLANE + row / 2 * P + column / 2;
}
__device__ __forceinline__ Eight* output_place(char* memory, int at) {
  const int plane = at % G, column = at / G % H, row = at / G / H;
  return reinterpret_cast<Eight*>(memory) + LEAD + plane * PLANE + row * P + column;
}
constexpr int INPUT = 4 * H * H * IG, OUTPUT = H * H * G;

// ---- what forward and backward share ----------------------------------------------------------------------------

struct Shared {
  u32 images, weights, sums, full;  // bias gradients; a barrier for the weights of each product
};
constexpr int SHARED_BYTES = IMAGES + PRODUCTS * TAP + BACK_THREADS / 32 * 2 * C * 4 + 128;

// Sends for the weights and clears the images.
__device__ __forceinline__ Shared start(char* memory, const u16* weights) {
  Shared s;
  s.images = shared_address(memory);
  s.weights = s.images + IMAGES;
  s.sums = s.weights + PRODUCTS * TAP;
  s.full = s.sums + BACK_THREADS / 32 * 2 * C * 4;
  if (threadIdx.x == 0) {
    for (int i = 0; i < PRODUCTS; i++) barrier_init(s.full + 8 * i, 1);
    fence_async();
    barriers_made();
    for (int i = 0; i < PRODUCTS; i++) {
      barrier_expect(s.full + 8 * i, TAP);
      load_bulk(s.weights + i * TAP, reinterpret_cast<const char*>(weights) + i * TAP, TAP, s.full + 8 * i);
    }
  }
  for (int i = threadIdx.x; i < POS; i += blockDim.x) reinterpret_cast<uint4*>(memory)[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();
  return s;
}

// The images are complete, for products and bulk copies to read.
__device__ __forceinline__ void images_made() {
  fence_async();
  __syncthreads();
}
// All have been read: by the products of all warpgroups, and by the bulk copy.
__device__ __forceinline__ void images_read() {
  mma_wait<0>();
  if (threadIdx.x == 0) stores_read();
  __syncthreads();
}

// ---- forward ----------------------------------------------------------------------------------------------------

// input: NHWC. hidden, shortcut: h and s, NHWC. saved: [batch], the four images of each input, or null.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    transition_forward(const Eight* input, const u16* weights, const float* bias, const float* project_bias, Eight* hidden,
                       Eight* shortcut, u16* saved) {
  extern __shared__ __align__(128) char memory[];
  const size_t image = blockIdx.x;
  Eight value[INPUT / THREADS];
#pragma unroll
  for (int n = 0; n < INPUT / THREADS; n++) value[n] = input[image * INPUT + n * THREADS + threadIdx.x];
  const Unit unit = first_unit();
  float2 b[NB / 8], c[NB / 8];  // biases
#pragma unroll
  for (int j = 0; j < NB / 8; j++) {
    const int channel = unit.split * NB + j * 8 + threadIdx.x % 4 * 2;
    b[j] = *reinterpret_cast<const float2*>(bias + channel), c[j] = *reinterpret_cast<const float2*>(project_bias + channel);
  }
  const Shared s = start(memory, weights);
#pragma unroll
  for (int n = 0; n < INPUT / THREADS; n++) *input_place(memory, n * THREADS + threadIdx.x) = value[n];
  images_made();
  if (saved && threadIdx.x == 0) store_bulk(saved + image * POS * 8, s.images, IMAGES);
  const u32 patch = uniform((s.images + unit.tile) >> 4), columns = uniform((s.weights >> 4) + unit.split * NB);
  float h[NB / 2], x[NB / 2];
#pragma unroll
  for (int tap = 0; tap < PRODUCTS; tap++) {
    barrier_wait(s.full + 8 * tap, 0);
    mma_fence();
#pragma unroll
    for (int k = 0; k < INPUTS / 16; k++)
      mma<0, 0>(tap < 9 ? h : x, matrix<PLANE * 16, P * 16>(patch + parity(tap) * IG * PLANE - before(tap) + k * 2 * PLANE),
                matrix<C * 16, 128>(columns + tap * (TAP / 16) + k * 2 * C), tap % 9 + k > 0);
    mma_commit();
  }
  images_read();
  settled(h);
  settled(x);
#pragma unroll
  for (int e = 0; e < NB / 4; e++) {
    const u32 to = s.images + unit.element + element_at(e / 2, e % 2);
    store_shared(to, pack(selu(h[2 * e] + b[e / 2].x), selu(h[2 * e + 1] + b[e / 2].y)));
    store_shared(to + G * PLANE * 16, pack(x[2 * e] + c[e / 2].x, x[2 * e + 1] + c[e / 2].y));
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < OUTPUT / THREADS; n++) {
    const int at = n * THREADS + threadIdx.x;
    const Eight* from = output_place(memory, at);
    hidden[image * OUTPUT + at] = from[0], shortcut[image * OUTPUT + at] = from[G * PLANE];
  }
  if (threadIdx.x == 0) stores_done();
}

// ---- backward ---------------------------------------------------------------------------------------------------

// The input's gradient at the pixels of one parity, for one patch.
template <int PARITY> __device__ __forceinline__ void gather(float (&acc)[INPUTS / 2], const Shared& s, u32 patch, u32 weights) {
  int more = 0;
#pragma unroll
  for (int tap = 0; tap < PRODUCTS; tap++)
    if (parity(tap) == PARITY) {
      barrier_wait(s.full + 8 * tap, 0);
      mma_fence();
#pragma unroll
      for (int k = 0; k < C / 16; k++, more = 1)
        mma<0, 1>(acc, matrix<PLANE * 16, P * 16>(patch + before(tap) + ((tap == 9) * G + k * 2) * PLANE),
                  matrix<128, C * 16>(weights + tap * (TAP / 16) + k * 16), more);
      mma_commit();
    }
}

// grad_hidden, hidden, grad_shortcut: NHWC. grads: [batch] images, the gradients of the convolution's and the projection's
// output. grad_bias: [batch][2][C], to be summed over the batch. grad_input: NHWC.
extern "C" __global__ void __launch_bounds__(BACK_THREADS, 1)
    transition_backward(const Eight* grad_hidden, const Eight* hidden, const Eight* grad_shortcut, const u16* weights, u16* grads,
                        float* grad_bias, Eight* grad_input) {
  extern __shared__ __align__(128) char memory[];
  constexpr int EACH = OUTPUT / BACK_THREADS;
  const size_t image = blockIdx.x;
  Eight dh[EACH], h[EACH], dx[EACH];
#pragma unroll
  for (int n = 0; n < EACH; n++) {
    const size_t at = image * OUTPUT + n * BACK_THREADS + threadIdx.x;
    dh[n] = grad_hidden[at], h[n] = hidden[at], dx[n] = grad_shortcut[at];
  }
  const Shared s = start(memory, weights);
  float sum[2][8] = {};
#pragma unroll
  for (int n = 0; n < EACH; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float left = low(dh[n].pair[e]) * selu_slope(low(h[n].pair[e]));
      const float right = high(dh[n].pair[e]) * selu_slope(high(h[n].pair[e]));
      dh[n].pair[e] = pack(left, right);
      sum[0][2 * e] += left, sum[0][2 * e + 1] += right;
      sum[1][2 * e] += low(dx[n].pair[e]), sum[1][2 * e + 1] += high(dx[n].pair[e]);
    }
    Eight* to = output_place(memory, n * BACK_THREADS + threadIdx.x);
    to[0] = dh[n], to[G * PLANE] = dx[n];
  }
  // Bias gradients: over a warp's pixels here (a thread has always the same channels), over the warps below, in a fixed order.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int e = 0; e < 16; e++) {
    float& mine = sum[e / 8][e % 8];
#pragma unroll
    for (int over = G; over < 32; over *= 2) mine += __shfl_xor_sync(0xffffffffu, mine, over);
    if (lane < G) store_shared(s.sums + ((warp * 2 + e / 8) * C + lane * 8 + e % 8) * 4, __float_as_uint(mine));
  }
  images_made();
  if (threadIdx.x == 0) store_bulk(grads + image * POS * 8, s.images, IMAGES);
  if (threadIdx.x < 2 * C) {
    float total = 0.f;
    for (int w = 0; w < BACK_THREADS / 32; w++) total += load_shared(s.sums + (w * 2 * C + threadIdx.x) * 4);
    grad_bias[image * 2 * C + threadIdx.x] = total;
  }
  // Four warpgroups: for four patches with all parities, or for the four parities of the only patch.
  const Unit unit = first_unit();
  const u32 patch = uniform((s.images + unit.tile) >> 4), all = uniform(s.weights >> 4);
  float acc[TILES][INPUTS / 2];
  if (TILES == 4 || unit.split == 0) gather<0>(acc[0], s, patch, all);
  if (TILES == 4 || unit.split == 1) gather<1>(acc[1 % TILES], s, patch, all);
  if (TILES == 4 || unit.split == 2) gather<2>(acc[2 % TILES], s, patch, all);
  if (TILES == 4 || unit.split == 3) gather<3>(acc[3 % TILES], s, patch, all);
  images_read();
#pragma unroll
  for (int p = 0; p < TILES; p++) {
    settled(acc[p]);
#pragma unroll
    for (int e = 0; e < INPUTS / 4; e++)
      store_shared(s.images + unit.element + element_at(p * IG + e / 2, e % 2), pack(acc[p][2 * e], acc[p][2 * e + 1]));
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < INPUT / BACK_THREADS; n++) {
    const int at = n * BACK_THREADS + threadIdx.x;
    grad_input[image * INPUT + at] = *input_place(memory, at);
  }
  if (threadIdx.x == 0) stores_done();
}

// ---- weight gradients -------------------------------------------------------------------------------------------

// One thread block: 64 output channels and all input channels, over some images. Two warpgroups with half of the products
// each; 16 pixels (8 columns of 2 rows) are the K of one instruction. An image comes in slices of 8 rows: of the gradients
// of both outputs, and of the input with one row more above.
constexpr int ROWS = 8, SLICES = H / ROWS, DY_PLANE = ROWS * P, X_PLANE = (ROWS + 1) * P + 1;
constexpr int DY_BYTES = 2 * 8 * DY_PLANE * 16, SLICE = DY_BYTES + 4 * IG * X_PLANE * 16;
constexpr int RING = 3, WEIGHT_SHARED_BYTES = RING * SLICE + 64, HALF = PRODUCTS / 2;

struct Slices {
  const u16 *saved, *grads;  // of the first image, the gradients from the first output channel on
  u32 ring, full, empty;
  int count;
};

// Slice q into its slot, by the first warpgroup. A warp issues its lanes' copies one after the other, so each has a few.
__device__ __forceinline__ void fetch(const Slices& s, int q) {
  constexpr int PLANES = 16 + 4 * IG;
  const int slot = q % RING, plane = threadIdx.x % 32 * 4 + threadIdx.x / 32;
  const size_t from = (size_t)(q / SLICES) * POS + LEAD + q % SLICES * ROWS * P;
  const u32 dy = s.ring + slot * SLICE, x = dy + DY_BYTES, bar = s.full + 8 * slot;
  if (threadIdx.x == 0) barrier_expect(bar, SLICE);
  if (plane < 16)
    load_bulk(dy + plane * DY_PLANE * 16, s.grads + (from + (plane / 8 * G + plane % 8) * PLANE) * 8, DY_PLANE * 16, bar);
  else if (plane < PLANES)
    load_bulk(x + (plane - 16) * X_PLANE * 16, s.saved + (from + (plane - 16) * PLANE - P - 1) * 8, X_PLANE * 16, bar);
}

// The products from FIRST on; out: from the first output channel on.
template <int FIRST> __device__ __forceinline__ void correlate(const Slices& s, float* out, float* projected) {
  float acc[HALF][INPUTS / 2] = {};
  for (int q = 0; q < s.count; q++) {
    const int slot = q % RING;
    barrier_wait(s.full + 8 * slot, q / RING & 1);
#pragma unroll 1
    for (int r = 0; r < ROWS * P; r += 2 * P) {
      mma_fence();
      const u32 left = uniform(((s.ring + slot * SLICE) >> 4) + r), right = left + DY_BYTES / 16 + P + 1;
#pragma unroll
      for (int c = 0; c < H; c += 8)
#pragma unroll
        for (int t = 0; t < HALF; t++) {
          const int tap = FIRST + t;
          mma<1, 1>(acc[t], matrix<P * 16, DY_PLANE * 16>(left + c + (tap == 9 ? 8 * DY_PLANE : 0)),
                    matrix<P * 16, X_PLANE * 16>(right + c + parity(tap) * IG * X_PLANE - before(tap)), 1);
        }
      mma_commit();
    }
    if (FIRST == 0 && q > 0 && q - 1 + RING < s.count) {  // while the products are made
      barrier_wait(s.empty + 8 * ((q - 1) % RING), (q - 1) / RING & 1);
      fetch(s, q - 1 + RING);
    }
    mma_wait<0>();
    if (threadIdx.x % 128 == 0) barrier_arrive(s.empty + 8 * slot);
  }
  const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int t = 0; t < HALF; t++) {
    settled(acc[t]);
#pragma unroll
    for (int e = 0; e < INPUTS / 4; e++) {
      const int tap = FIRST + t, at = row + e % 2 * 8, channel = e / 2 * 8 + threadIdx.x % 4 * 2;
      float* to = (tap == 9 ? projected + at * INPUTS : out + (at * 9 + tap) * INPUTS) + channel;
      *reinterpret_cast<float2*>(to) = make_float2(acc[t][2 * e], acc[t][2 * e + 1]);
    }
  }
}

// partial: [parts] of [C][9][INPUTS] and [C][INPUTS].
extern "C" __global__ void __launch_bounds__(256, 1)
    transition_weights(const u16* saved, const u16* grads, float* partial, int batch) {
  extern __shared__ __align__(128) char memory[];
  const int first = (int)((long long)batch * blockIdx.y / gridDim.y), end = (int)((long long)batch * (blockIdx.y + 1) / gridDim.y);
  const size_t image = (size_t)first * POS;
  Slices s;
  s.saved = saved + image * 8, s.grads = grads + (image + blockIdx.x * 8 * PLANE) * 8;
  s.ring = shared_address(memory), s.full = s.ring + RING * SLICE, s.empty = s.full + 8 * RING;
  s.count = (end - first) * SLICES;
  if (threadIdx.x == 0)
    for (int i = 0; i < RING; i++) {
      barrier_init(s.full + 8 * i, 1);
      barrier_init(s.empty + 8 * i, 2);
    }
  barriers_made();
  __syncthreads();
  if (threadIdx.x < 128)
    for (int q = 0; q < RING && q < s.count; q++) fetch(s, q);
  partial += (size_t)blockIdx.y * PRODUCTS * C * INPUTS;
  float *out = partial + blockIdx.x * 64 * 9 * INPUTS, *projected = partial + (9 * C + blockIdx.x * 64) * INPUTS;
  if (uniform(threadIdx.x / 128) == 0)
    correlate<0>(s, out, projected);
  else
    correlate<HALF>(s, out, projected);
}

// Weights [out][tap][in] and the projection's [out][in] to [product][in/8][out][8], 16 bytes a thread.
extern "C" __global__ void transition_pack(const uint4* weights, const uint4* project, uint4* packed) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= PRODUCTS * IG * C) return;
  const int tap = at / (IG * C), plane = at / C % IG, out = at % C;
  packed[at] = tap == 9 ? project[out * IG + plane] : weights[(out * 9 + tap) * IG + plane];
}
