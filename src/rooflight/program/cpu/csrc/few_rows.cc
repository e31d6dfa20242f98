// x[M,K] * W[K,N] -> y[M,N] of a few rows, on a CPU: W is read once, as it lies, and never packed.
//
//   for each tile of columns, on any thread: for 8 rows of W at a time: for each block of rows:
//       sums[block, 2 vectors] += x[block, 8] * W[8, 2 vectors]     the sums in registers
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

constexpr int64_t kLanes = 16, kStep = 2 * kLanes;  // of a vector; columns of a block
constexpr int64_t kDepth = 8;                       // rows of W at a time
constexpr int64_t kTall = 8, kMostRows = 32;        // rows of a block at most; of x
constexpr int64_t kWide = 256, kNarrow = 128;       // columns of a tile, of one block and of many

typedef float Lanes __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

Lanes Load(const float* at) { return *reinterpret_cast<const Lanes*>(at); }

Lanes Load(const Bf16* at) {
  const auto halves = *reinterpret_cast<const Halves*>(at);
  return reinterpret_cast<Lanes>(__builtin_convertvector(halves, Words) << 16);
}

// x in blocks of kRows rows, the last one filled with zeros: W of a step meets one block, or
// several, which then share the fetching of the next step: one line of each row a block.
template <typename Stored, int64_t kRows, bool kIsOne>
struct Product {
  static constexpr int64_t kTile = kIsOne ? kWide : kNarrow;

  const Stored* w;
  Stored* y;
  int64_t rows, depth, columns, blocks;
  std::shared_ptr<const float[]> x;  // [K / kDepth, blocks, kDepth, kRows]

  // sums[kRows, kStep] += x[deep, kRows] * W[deep, kStep]
  void Step(float* sums, const float* x, const Stored* w, const Stored* next, int64_t deep) const {
    Lanes left[kRows], right[kRows];
    for (int64_t m = 0; m < kRows; ++m) {
      left[m] = Load(sums + m * kTile);
      right[m] = Load(sums + m * kTile + kLanes);
    }
    for (int64_t k = 0; k < deep; ++k, x += kRows, w += columns, next += columns) {
      const Lanes first = Load(w), second = Load(w + kLanes);
      __builtin_prefetch(next, 0, kIsOne ? 3 : 2);
      if (kIsOne) __builtin_prefetch(next + kLanes);
      for (int64_t m = 0; m < kRows; ++m) {
        left[m] += x[m] * first;
        right[m] += x[m] * second;
      }
    }
    for (int64_t m = 0; m < kRows; ++m) {
      *reinterpret_cast<Lanes*>(sums + m * kTile) = left[m];
      *reinterpret_cast<Lanes*>(sums + m * kTile + kLanes) = right[m];
    }
  }

  void operator()(int64_t number) const {
    const int64_t begin = number * kTile, width = std::min(kTile, columns - begin);
    const int64_t steps = width / kStep * kStep;
    alignas(64) float sums[kMostRows * kNarrow];
    std::fill_n(sums, blocks * kRows * kTile, 0.0f);
    for (int64_t from = 0; from < depth; from += kDepth) {
      const int64_t deep = std::min(kDepth, depth - from);
      const Stored* at = w + from * columns + begin;
      const float* factors = x.get() + from * blocks * kRows;
      for (int64_t n = 0; n < steps; n += kStep) {
        for (int64_t block = 0; block < blocks; ++block) {
          const Stored* next = at + n + kDepth * columns;  // past the end at last: no fault
          Step(sums + block * kRows * kTile + n, factors + block * kDepth * kRows, at + n,
               next + block % 2 * kLanes, deep);
        }
      }
      for (int64_t m = 0; m < rows && steps < width; ++m) {  // one by one, what no step covers
        const float* own = factors + m / kRows * kDepth * kRows + m % kRows;
        for (int64_t k = 0; k < deep; ++k) {
          for (int64_t n = steps; n < width; ++n) {
            sums[m * kTile + n] += own[k * kRows] * at[k * columns + n];
          }
        }
      }
    }
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t n = 0; n < width; ++n) {
        y[m * columns + begin + n] = static_cast<Stored>(sums[m * kTile + n]);
      }
    }
  }
};

// x in the order in which the steps meet it.
template <typename Stored>
std::shared_ptr<const float[]> Packed(const Stored* x, int64_t rows, int64_t depth, int64_t tall) {
  const int64_t blocks = (rows + tall - 1) / tall, deep = (depth + kDepth - 1) / kDepth * kDepth;
  const std::shared_ptr<float[]> packed(new float[deep * blocks * tall]);
  for (int64_t from = 0; from < depth; from += kDepth) {
    for (int64_t block = 0; block < blocks; ++block) {
      float* to = packed.get() + (from * blocks + block * kDepth) * tall;
      for (int64_t k = from; k < std::min(from + kDepth, depth); ++k) {
        for (int64_t m = block * tall; m < (block + 1) * tall; ++m) {
          *to++ = m < rows ? static_cast<float>(x[m * depth + k]) : 0.0f;
        }
      }
    }
  }
  return packed;
}

template <typename Stored, int64_t kRows, bool kIsOne>
void Multiply(ffi::ThreadPool& threads, ffi::AnyBuffer x, ffi::AnyBuffer w, ffi::AnyBuffer y) {
  const int64_t rows = x.dimensions()[0], depth = x.dimensions()[1], columns = w.dimensions()[1];
  using Form = Product<Stored, kRows, kIsOne>;
  const Form product{static_cast<const Stored*>(w.untyped_data()),
                     static_cast<Stored*>(y.untyped_data()),
                     rows,
                     depth,
                     columns,
                     (rows + kRows - 1) / kRows,
                     Packed(static_cast<const Stored*>(x.untyped_data()), rows, depth, kRows)};
  rooflight::Share(threads, (columns + Form::kTile - 1) / Form::kTile, product);
}

template <typename Stored>
ffi::Error Run(ffi::ThreadPool& threads, ffi::AnyBuffer x, ffi::AnyBuffer w, ffi::AnyBuffer y) {
  const int64_t rows = x.dimensions()[0];
  const auto multiply = rows > kTall ? Multiply<Stored, kTall, false>
                        : rows > 4   ? Multiply<Stored, 8, true>
                        : rows > 2   ? Multiply<Stored, 4, true>
                        : rows > 1   ? Multiply<Stored, 2, true>
                                     : Multiply<Stored, 1, true>;
  multiply(threads, x, w, y);
  return ffi::Error::Success();
}

ffi::Error FewRows(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::AnyBuffer w,
                   ffi::Result<ffi::AnyBuffer> y) {
  const auto left = x.dimensions(), right = w.dimensions();
  if (left.size() != 2 || right.size() != 2 || left[1] != right[0]) {
    return ffi::Error::InvalidArgument("a product is of x[M,K] and W[K,N]");
  }
  if (left[0] > kMostRows) {
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
