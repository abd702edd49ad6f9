// hopper.cuh on a CPU: one thread block at a time, a thread for each of its threads. Indexing, layouts, barriers and the
// order of work are those of the kernels. What a GPU does some time before a wait is done here as is worst: loads at once,
// stores and matrix products when they are waited for. So a missing wait shows, where it is not for a fence between ways
// to memory, which do nothing here. Shared memory starts full of NaNs.

#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n)

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
struct uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

struct Index { int x, y; };
thread_local Index threadIdx;
Index blockIdx, gridDim, blockDim;
constexpr u32 SHARED_LIMIT = 232448;
alignas(128) char memory[SHARED_LIMIT];
u32 shared_size;  // what this launch asked for

inline void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "emulated kernel: %s\n", what);
    std::abort();
  }
}
inline char* shared_at(u32 at, u32 size) {
  require(at + size <= shared_size, "shared memory beyond the end");
  return memory + at;
}

class Meeting {  // of a given number of threads, again and again
 public:
  void attend(int threads) {
    std::unique_lock<std::mutex> lock(mutex);
    int mine = round;
    if (++here == threads) {
      here = 0;
      round++;
      changed.notify_all();
    } else {
      changed.wait(lock, [&] { return round != mine; });
    }
  }

 private:
  std::mutex mutex;
  std::condition_variable changed;
  int here = 0, round = 0;
};
Meeting whole_block, consumers, groups[16], warps[64];
float exchanged[64][32];

inline void __syncthreads() { whole_block.attend(blockDim.x); }
inline void __syncwarp() { warps[threadIdx.x / 32].attend(32); }
inline void group_barrier(int threads) { consumers.attend(threads); }
inline float __shfl_xor_sync(u32, float value, int lanes) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  exchanged[warp][lane] = value;
  __syncwarp();
  float found = exchanged[warp][lane ^ lanes];
  __syncwarp();
  return found;
}
inline u32 uniform(u32 value) { return value; }

inline float __uint_as_float(u32 bits) { float v; std::memcpy(&v, &bits, 4); return v; }
inline u32 __float_as_uint(float v) { u32 bits; std::memcpy(&bits, &v, 4); return bits; }
inline float exp2_fast(float v) { return std::exp2(v); }
inline u32 rounded(float v) {
  u32 bits = __float_as_uint(v);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline u32 pack(float low, float high) { return rounded(low) | rounded(high) << 16; }
inline float low(u32 pair) { return __uint_as_float(pair << 16); }
inline float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
inline u32 shared_address(const void* p) { return (u32)((const char*)p - memory); }
inline void store_shared(u32 at, u32 value) { std::memcpy(shared_at(at, 4), &value, 4); }
inline float load_shared(u32 at) { float v; std::memcpy(&v, shared_at(at, 4), 4); return v; }

struct Counter { int count = 0, pending = 0, phase = 0; long bytes = 0; };  // an mbarrier
Counter counters[SHARED_LIMIT / 8];
std::mutex counting;
std::condition_variable counted;
inline Counter& counter(u32 bar) {
  require(bar % 8 == 0 && bar + 8 <= shared_size, "a barrier out of place");
  return counters[bar / 8];
}
inline void count_down(Counter& c, int arrivals, long bytes) {
  std::lock_guard<std::mutex> lock(counting);
  c.pending -= arrivals;
  c.bytes += bytes;
  require(c.pending >= 0, "more arrivals than a barrier expects");
  if (c.pending == 0 && c.bytes == 0) {
    c.phase++;
    c.pending = c.count;
    counted.notify_all();
  }
}
inline void barrier_init(u32 bar, u32 count) { counter(bar) = {(int)count, (int)count, 0, 0}; }
inline void barriers_made() {}
inline void barrier_expect(u32 bar, u32 bytes) { count_down(counter(bar), 1, bytes); }
inline void barrier_arrive(u32 bar) { count_down(counter(bar), 1, 0); }
inline void barrier_wait(u32 bar, u32 parity) {
  std::unique_lock<std::mutex> lock(counting);
  counted.wait(lock, [&] { return (u32)(counter(bar).phase & 1) != parity; });
}
inline void load_bulk(u32 to, const void* from, u32 bytes, u32 bar) {
  require(to % 16 == 0 && (u64)from % 16 == 0 && bytes % 16 == 0, "a bulk load out of line");
  std::memcpy(shared_at(to, bytes), from, bytes);
  count_down(counter(bar), 0, -(long)bytes);
}
thread_local std::vector<std::function<void()>> stores;
inline void store_bulk(void* to, u32 from, u32 bytes) {
  require((u64)to % 16 == 0 && from % 16 == 0 && bytes % 16 == 0, "a bulk store out of line");
  stores.push_back([=] { std::memcpy(to, shared_at(from, bytes), bytes); });
}
inline void stores_read() {
  for (auto& store : stores) store();
  stores.clear();
}
inline void stores_done() { stores_read(); }
inline void fence_async() {}
inline void mma_fence() {}
thread_local std::vector<std::function<void()>> products;
thread_local std::vector<size_t> committed;  // how many products there were at each commit
inline void mma_commit() { committed.push_back(products.size()); }
// A warpgroup multiplies together: none of its threads is done before all have come so far.
template <int R> inline void settled(float (&)[R]) {}
template <int LEFT> inline void mma_wait() {
  if (committed.size() > LEFT) {
    const size_t ready = committed[committed.size() - 1 - LEFT];
    for (size_t i = 0; i < ready; i++) products[i]();
    products.erase(products.begin(), products.begin() + ready);
    committed.erase(committed.begin(), committed.end() - LEFT);
    for (auto& count : committed) count -= ready;
  }
  groups[threadIdx.x / 128].attend(128);
}

template <u32 K, u32 MN> inline u64 matrix(u32 start) {
  require(start < 1 << 14 && K >> 4 < 1 << 14 && MN >> 4 < 1 << 14, "an operand's address does not fit");
  return (u64)(start + ((K >> 4) << 16)) | (u64)(MN >> 4) << 32;
}
// Element (mn, k) of an operand: K or, transposed, M or N is what lies side by side in a core matrix.
inline float operand(u64 matrix, int mn, int k, bool transposed) {
  u32 start = (matrix & 0x3fff) * 16, along_k = (matrix >> 16 & 0x3fff) * 16, along_mn = (matrix >> 32 & 0x3fff) * 16;
  u32 inside = transposed ? k % 8 * 16 + mn % 8 * 2 : mn % 8 * 16 + k % 8 * 2;
  u16 bits;
  std::memcpy(&bits, shared_at(start + mn / 8 * along_mn + k / 8 * along_k + inside, 2), 2);
  return __uint_as_float((u32)bits << 16);
}
template <int TA, int TB, int R> inline void multiply(float* d, u64 a, u64 b, int accumulate) {
  int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  for (int i = 0; i < 2; i++) {
    float row[16];
    for (int k = 0; k < 16; k++) row[k] = operand(a, 16 * warp + lane / 4 + 8 * i, k, TA);
    for (int j = 0; j < R / 4; j++)
      for (int e = 0; e < 2; e++) {
        float& out = d[4 * j + 2 * i + e];
        float sum = accumulate ? out : 0.f;
        for (int k = 0; k < 16; k++) sum += row[k] * operand(b, 8 * j + lane % 4 * 2 + e, k, TB);
        out = sum;
      }
  }
}
template <int TA, int TB, int R> inline void mma(float (&d)[R], u64 a, u64 b, int accumulate) {
  float* into = d;
  products.push_back([=] { multiply<TA, TB, R>(into, a, b, accumulate); });
}

// Run `kernel` on a grid; `together` where its threads wait for each other.
inline void launch(int width, int height, int threads, u32 shared, bool together, const std::function<void()>& kernel) {
  require(shared <= SHARED_LIMIT, "too much shared memory");
  gridDim = {width, height}, blockDim = {threads, 1}, shared_size = shared;
  for (blockIdx.y = 0; blockIdx.y < height; blockIdx.y++)
    for (blockIdx.x = 0; blockIdx.x < width; blockIdx.x++) {
      std::memset(memory, 0xff, sizeof memory);
      std::vector<std::thread> all;
      for (int i = 0; i < threads; i++) {
        auto one = [&kernel, i] {
          threadIdx = {i, 0}, kernel();
          require(stores.empty() && products.empty(), "a thread ends before what it began is done");
        };
        if (together)
          all.emplace_back(one);
        else
          one();
      }
      for (auto& thread : all) thread.join();
    }
}
