// Hopper's own instructions as functions: barriers that count bytes, bulk copies, and the matrix product of a warpgroup.
// Shared memory is addressed by 32-bit numbers throughout. tests/nn/emulate.h does the same on a CPU.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

// The same value, known by the compiler to be the same for the whole warp: wgmma takes its operands' addresses from uniform
// registers, and moving them there one by one takes longer than the products.
__device__ __forceinline__ u32 uniform(u32 value) { return __shfl_sync(0xffffffffu, value, 0); }
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again_%=;\n}"
      ::"r"(bar), "r"(parity) : "memory");
}
__device__ __forceinline__ void load_bulk(u32 to, const void* from, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(bar) : "memory");
}
__device__ __forceinline__ void store_bulk(void* to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// What ordinary stores wrote becomes visible to wgmma and bulk copies.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void group_barrier(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }
__device__ __forceinline__ void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Nothing that reads `d` may be moved before this: to the compiler a product is done when it is issued.
template <int R> __device__ __forceinline__ void settled(float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// How wgmma finds its core matrices: where they start, and in bytes `K` between neighbours along K, `MN` along M or N.
// `start` is an address over 16, so that offsets known at compile time stay additions.
template <u32 K, u32 MN> __device__ __forceinline__ u64 matrix(u32 start) {
  u64 out;
  asm("mov.b64 %0, {%1, %2};" : "=l"(out) : "r"(start + ((K >> 4) << 16)), "n"(MN >> 4));
  return out;
}

#define R4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define R16(d, i) R4(d, i), R4(d, i + 4), R4(d, i + 8), R4(d, i + 12)
template <int TA, int TB> __device__ __forceinline__ void mma(float (&d)[16], u64 a, u64 b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, "
      "%5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, %19, %20;\n}"
      : R16(d, 0) : "l"(a), "l"(b), "r"(accumulate), "n"(TA), "n"(TB));
}
template <int TA, int TB> __device__ __forceinline__ void mma(float (&d)[32], u64 a, u64 b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, "
      "%5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, "
      "%29, %30, %31}, %32, %33, p, 1, 1, %35, %36;\n}"
      : R16(d, 0), R16(d, 16) : "l"(a), "l"(b), "r"(accumulate), "n"(TA), "n"(TB));
}

// 2^v, to 2 units in the last place.
__device__ __forceinline__ float exp2_fast(float v) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
  return out;
}
__device__ __forceinline__ u32 pack(float low, float high) {
  u32 out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ void store_shared(u32 at, u32 value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
__device__ __forceinline__ float load_shared(u32 at) {
  float out;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(out) : "r"(at) : "memory");
  return out;
}
