// The kernels of stage.cu as functions for Python, run by emulate.h. tests/nn/test_emulated.py puts all in front.

extern "C" {
void forward(int batch, int threads, u32 shared, const u16* x, const u16* entry, const u16* w, const float* b, u16* out,
             u16* saved, int n) {
  launch(batch, 1, threads, shared, true, [=] { stage_forward(x, entry, w, b, out, saved, n); });
}
void backward(int batch, int threads, u32 shared, const u16* dy, const u16* y, const u16* w, const u16* saved, u16* grads,
              float* db, u16* dx, u16* dh, int n) {
  launch(batch, 1, threads, shared, true, [=] { stage_backward(dy, y, w, saved, grads, db, dx, dh, n); });
}
void weights(int width, int parts, u32 shared, const u16* saved, const u16* grads, float* partial, int convs, int batch) {
  launch(width, parts, 416, shared, true, [=] { stage_weights(saved, grads, partial, convs, batch); });
}
void sum(int blocks, const float* partial, u16* out, int parts, int quads) {
  launch(blocks, 1, 256, 0, false, [=] { sum_parts((const float4*)partial, (uint2*)out, parts, quads); });
}
void repack(int blocks, const u16* from, u16* to, int count) {
  launch(blocks, 1, 256, 0, false, [=] { stage_pack((const uint4*)from, (uint4*)to, count); });
}
}
