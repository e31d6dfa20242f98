// x[M,K] * W[K,N] -> y[M,N] of a few rows, on a CPU: W is read once, as it lies, and never packed.
//
//   for each tile of columns, on any thread: for 8 rows of W at a time:
//       sums[m, tile] += x[m, 8] * W[8, tile]     for every m, W in registers
//
// Sums are f32 in the order of k, so a row of y depends neither on the rows beside it nor on the
// threads.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "share.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int64_t kLanes = 16, kDepth = 8;  // of a vector; rows of W in registers, two vectors each
constexpr int64_t kStep = 2 * kLanes;
constexpr int64_t kSums = 4096;                  // of a tile: they stay in the first cache
constexpr int64_t kNarrow = 128, kWide = 256;    // columns of a tile
typedef float Lanes __attribute__((vector_size(4 * kLanes), aligned(4)));

struct Product {
  const float* w;
  float* y;
  int64_t rows, depth, columns, tile;
  std::shared_ptr<const float[]> x;  // [K / kDepth, M, kDepth]: what meets 8 rows of W together

  // sums[:, n : n + kStep] += x[:, k : k + kDepth] * W[k : k + kDepth, n : n + kStep]
  void Step(float* sums, const float* w, const float* x) const {
    Lanes left[kDepth], right[kDepth];
    for (int64_t k = 0; k < kDepth; ++k) {
      const float* at = w + k * columns;
      left[k] = *reinterpret_cast<const Lanes*>(at);
      right[k] = *reinterpret_cast<const Lanes*>(at + kLanes);
      __builtin_prefetch(at + kDepth * columns);  // past the end at last, which is no fault
      __builtin_prefetch(at + kDepth * columns + kLanes);
    }
    for (int64_t m = 0; m < rows; ++m, x += kDepth, sums += tile) {
      Lanes* to = reinterpret_cast<Lanes*>(sums);
      Lanes a = to[0], b = to[1];
      for (int64_t k = 0; k < kDepth; ++k) {
        a += x[k] * left[k];
        b += x[k] * right[k];
      }
      to[0] = a;
      to[1] = b;
    }
  }

  void operator()(int64_t number) const {
    const int64_t begin = number * tile, width = std::min(tile, columns - begin);
    const int64_t steps = width / kStep * kStep, deep = depth / kDepth * kDepth;
    alignas(64) float sums[kSums];
    std::fill_n(sums, rows * tile, 0.0f);
    for (int64_t k = 0; k < deep; k += kDepth) {
      const float* at = w + k * columns + begin;
      for (int64_t n = 0; n < steps; n += kStep) Step(sums + n, at + n, x.get() + k * rows);
    }
    for (int64_t k = 0; k < depth; ++k) {  // one by one, what no step has covered
      const float* at = w + k * columns + begin;
      const float* factors = x.get() + k / kDepth * kDepth * rows + k % kDepth;
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t n = k < deep ? steps : 0; n < width; ++n) {
          sums[m * tile + n] += factors[m * kDepth] * at[n];
        }
      }
    }
    for (int64_t m = 0; m < rows; ++m) {
      std::copy_n(sums + m * tile, width, y + m * columns + begin);
    }
  }
};

using F32 = ffi::Buffer<ffi::F32>;

ffi::Error FewRows(ffi::ThreadPool threads, F32 x, F32 w, ffi::Result<F32> y) {
  const auto left = x.dimensions(), right = w.dimensions();
  if (left.size() != 2 || right.size() != 2 || left[1] != right[0]) {
    return ffi::Error::InvalidArgument("a product is of x[M,K] and W[K,N]");
  }
  const int64_t rows = left[0], depth = left[1], columns = right[1];
  if (rows * kNarrow > kSums) return ffi::Error::InvalidArgument("x has more than a few rows");
  const std::shared_ptr<float[]> packed(new float[(depth + kDepth) * rows]);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t k = 0; k < depth; ++k) {
      packed[(k / kDepth * rows + m) * kDepth + k % kDepth] = x.typed_data()[m * depth + k];
    }
  }
  const int64_t tile = rows * kWide <= kSums / 2 ? kWide : kNarrow;
  const Product product{w.typed_data(), y->typed_data(), rows, depth, columns, tile, packed};
  rooflight::Share(threads, (columns + tile - 1) / tile, product);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    FewRowsHandler, FewRows,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<F32>().Arg<F32>().Ret<F32>());
