// The kernels of transition.cu as functions for Python, run by emulate.h. tests/nn/test_emulated.py puts all in front.

extern "C" {
void forward(int batch, int threads, u32 shared, const Eight* a, const u16* w, const float* b, const float* pb, Eight* h,
             Eight* x, u16* saved) {
  launch(batch, 1, threads, shared, true, [=] { transition_forward(a, w, b, pb, h, x, saved); });
}
void backward(int batch, u32 shared, const Eight* dh, const Eight* h, const Eight* dx, const u16* w, u16* grads, float* db,
              Eight* da) {
  launch(batch, 1, 512, shared, true, [=] { transition_backward(dh, h, dx, w, grads, db, da); });
}
void weights(int width, int parts, u32 shared, const u16* saved, const u16* grads, float* partial, int batch) {
  launch(width, parts, 256, shared, true, [=] { transition_weights(saved, grads, partial, batch); });
}
void sum(int blocks, const float* partial, u16* out, int parts, int quads) {
  launch(blocks, 1, 64, 0, false, [=] { sum_parts((const float4*)partial, (uint2*)out, parts, quads); });
}
void repack(int blocks, const u16* weights, const u16* project, u16* to) {
  launch(blocks, 1, 256, 0, false, [=] { transition_pack((const uint4*)weights, (const uint4*)project, (uint4*)to); });
}
}
