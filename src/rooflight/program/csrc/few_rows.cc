// x[M,K] * W[K,N] -> y[M,N] of a few rows, on a CPU: W is read once, as it lies, and never packed.
//
//   for each tile of columns, on any thread: for 8 rows of W at a time:
//       sums[m, tile] += x[m, 8] * W[8, tile]     for every m, W in registers
//
// All of f32, or all of bf16 but the sums. They are taken in the order of k, so a row of y depends
// neither on the rows beside it nor on the threads.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "bf16.h"
#include "share.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using rooflight::Bf16;

constexpr int64_t kLanes = 16, kDepth = 8;  // of a vector; rows of W in registers, two vectors each
constexpr int64_t kStep = 2 * kLanes;
constexpr int64_t kSums = 4096;                // of a tile: they stay in the first cache
constexpr int64_t kNarrow = 128, kWide = 256;  // columns of a tile

typedef float Lanes __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

Lanes Load(const float* at) { return *reinterpret_cast<const Lanes*>(at); }

Lanes Load(const Bf16* at) {
  const auto halves = *reinterpret_cast<const Halves*>(at);
  return reinterpret_cast<Lanes>(__builtin_convertvector(halves, Words) << 16);
}

template <typename Stored>
struct Product {
  const Stored* w;
  Stored* y;
  int64_t rows, depth, columns, tile;
  std::shared_ptr<const float[]> x;  // [K / kDepth, M, kDepth]: what meets 8 rows of W together

  // sums[:, n : n + kStep] += x[:, k : k + kDepth] * W[k : k + kDepth, n : n + kStep]
  void Step(float* sums, const Stored* w, const float* x) const {
    Lanes left[kDepth], right[kDepth];
    for (int64_t k = 0; k < kDepth; ++k) {
      const Stored* at = w + k * columns;
      left[k] = Load(at);
      right[k] = Load(at + kLanes);
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
      const Stored* at = w + k * columns + begin;
      for (int64_t n = 0; n < steps; n += kStep) Step(sums + n, at + n, x.get() + k * rows);
    }
    for (int64_t k = 0; k < depth; ++k) {  // one by one, what no step has covered
      const Stored* at = w + k * columns + begin;
      const float* factors = x.get() + k / kDepth * kDepth * rows + k % kDepth;
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t n = k < deep ? steps : 0; n < width; ++n) {
          sums[m * tile + n] += factors[m * kDepth] * at[n];
        }
      }
    }
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t n = 0; n < width; ++n) {
        y[m * columns + begin + n] = static_cast<Stored>(sums[m * tile + n]);
      }
    }
  }
};

template <typename Stored>
ffi::Error Run(ffi::ThreadPool& threads, ffi::AnyBuffer x, ffi::AnyBuffer w, ffi::AnyBuffer y) {
  const int64_t rows = x.dimensions()[0], depth = x.dimensions()[1], columns = w.dimensions()[1];
  const auto* factors = static_cast<const Stored*>(x.untyped_data());
  const std::shared_ptr<float[]> packed(new float[(depth + kDepth) * rows]);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t k = 0; k < depth; ++k) {
      packed[(k / kDepth * rows + m) * kDepth + k % kDepth] = factors[m * depth + k];
    }
  }
  const int64_t tile = rows * kWide <= kSums / 2 ? kWide : kNarrow;
  const Product<Stored> product{static_cast<const Stored*>(w.untyped_data()),
                                static_cast<Stored*>(y.untyped_data()),
                                rows,
                                depth,
                                columns,
                                tile,
                                packed};
  rooflight::Share(threads, (columns + tile - 1) / tile, product);
  return ffi::Error::Success();
}

ffi::Error FewRows(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::AnyBuffer w,
                   ffi::Result<ffi::AnyBuffer> y) {
  const auto left = x.dimensions(), right = w.dimensions();
  if (left.size() != 2 || right.size() != 2 || left[1] != right[0]) {
    return ffi::Error::InvalidArgument("a product is of x[M,K] and W[K,N]");
  }
  if (left[0] * kNarrow > kSums) {
    return ffi::Error::InvalidArgument("x has more than a few rows");
  }
  const auto type = x.element_type();
  if (w.element_type() != type || y->element_type() != type) {
    return ffi::Error::InvalidArgument("x, W and y are of one type");
  }
  if (type == ffi::F32) return Run<float>(threads, x, w, *y);
  if (type == ffi::BF16) return Run<Bf16>(threads, x, w, *y);
  return ffi::Error::InvalidArgument("a product is of f32 or bf16");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(FewRowsHandler, FewRows,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
