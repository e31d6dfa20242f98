// Attention to a paged cache on a CPU: what `paged_rows.attend_by_row` does, as an FFI custom call.
//
//   for each row b and kv head k, on any thread: for each block of those that its queries see:
//       for each query: scores with the keys, then its state over the values
//
// Keys and values of a block come from memory once; a query's sums are taken in the order of
// positions, so what it finds depends neither on the rows beside it nor on the threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bf16.h"
#include "share.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr float kLowest = -1e30f;  // the max of no keys: LOWEST of paged_rows.py

struct Shape {
  int64_t rows, tokens, kv_heads, groups, width;  // q[B,T,K,G,H]
  int64_t num_blocks, size, table;                // pages[L,N,S,2K,H], ids[B,P]
  int64_t window;                                 // 0: none
  float softcap;                                  // 0: none
};

// The softmax of one query over the keys so far: max, sum and unnormalised out[H].
struct State {
  float &max, &sum;
  float* out;
};

template <typename Stored>
struct Attention {
  Shape shape;
  const float* q;
  const Stored* pages;  // of the layer
  const int32_t *ids, *starts, *lengths;
  float *max, *sum, *out;

  int64_t stride() const { return 2 * shape.kv_heads * shape.width; }  // of a position

  float Score(const float* query, const Stored* key) const {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t h = 0; h < shape.width; ++h) sum += query[h] * key[h];
    return shape.softcap > 0 ? shape.softcap * std::tanh(sum / shape.softcap) : sum;
  }

  // The state of a query over `count` more keys, each before its value.
  void Extend(const float* query, const Stored* keys, int64_t count, float* p, State state) const {
    float top = state.max;
    for (int64_t s = 0; s < count; ++s) {
      p[s] = Score(query, keys + s * stride());
      top = std::max(top, p[s]);
    }
    const float keep = std::exp(state.max - top);
    state.max = top;
    state.sum *= keep;
    for (int64_t s = 0; s < count; ++s) state.sum += p[s] = std::exp(p[s] - top);
    for (int64_t h = 0; h < shape.width; ++h) state.out[h] *= keep;
    for (int64_t s = 0; s < count; ++s) {
      const Stored* value = keys + s * stride() + shape.width;
#pragma omp simd
      for (int64_t h = 0; h < shape.width; ++h) state.out[h] += p[s] * value[h];
    }
  }

  // All queries of row b that belong to kv head k.
  void operator()(int64_t b, int64_t k) const {
    const int64_t start = starts[b], end = start + lengths[b];
    const auto number = [&](int64_t t, int64_t g) {
      return ((b * shape.tokens + t) * shape.kv_heads + k) * shape.groups + g;
    };
    for (int64_t t = 0; t < shape.tokens; ++t) {
      std::fill_n(max + number(t, 0), shape.groups, kLowest);
      std::fill_n(sum + number(t, 0), shape.groups, 0.0f);
      std::fill_n(out + number(t, 0) * shape.width, shape.groups * shape.width, 0.0f);
    }
    const auto oldest = [&](int64_t at) {
      return shape.window ? std::max<int64_t>(at - shape.window + 1, 0) : 0;
    };
    std::vector<float> p(shape.size);
    const int64_t last = std::min((end + shape.size - 1) / shape.size, shape.table);
    for (int64_t block = oldest(start) / shape.size; block < last; ++block) {
      const int64_t id = ids[b * shape.table + block], base = block * shape.size;
      if (id < 0 || id >= shape.num_blocks) continue;  // a block of another device
      const Stored* entries = pages + id * shape.size * stride() + 2 * k * shape.width;
      for (int64_t t = 0; t < shape.tokens; ++t) {
        const int64_t from = std::max(oldest(start + t), base);
        const int64_t to = std::min({start + t + 1, end, base + shape.size});
        if (from >= to) continue;
        for (int64_t i = number(t, 0); i < number(t, shape.groups); ++i) {
          Extend(q + i * shape.width, entries + (from - base) * stride(), to - from, p.data(),
                 {max[i], sum[i], out + i * shape.width});
        }
      }
    }
  }
};

using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::Buffer<ffi::S32>;

template <typename Stored>
ffi::Error Run(ffi::ThreadPool& threads, const Shape& shape, F32 q, ffi::AnyBuffer pages, S32 ids,
               S32 starts, S32 lengths, S32 layer, float* max, float* sum, float* out) {
  const int64_t layers = pages.dimensions()[0];
  const int64_t number = std::clamp<int64_t>(layer.typed_data()[0], 0, layers - 1);
  const auto* all = static_cast<const Stored*>(pages.untyped_data());
  const Attention<Stored> attention{shape,
                                    q.typed_data(),
                                    all + number * (pages.element_count() / layers),
                                    ids.typed_data(),
                                    starts.typed_data(),
                                    lengths.typed_data(),
                                    max,
                                    sum,
                                    out};
  rooflight::Share(threads, shape.rows * shape.kv_heads, [attention](int64_t i) {
    attention(i / attention.shape.kv_heads, i % attention.shape.kv_heads);
  });
  return ffi::Error::Success();
}

ffi::Error PagedAttention(ffi::ThreadPool threads, F32 q, ffi::AnyBuffer pages, S32 ids,
                          S32 starts, S32 lengths, S32 layer, ffi::Result<F32> max,
                          ffi::Result<F32> sum, ffi::Result<F32> out, int64_t window,
                          float softcap) {
  const auto query = q.dimensions(), block = pages.dimensions(), table = ids.dimensions();
  if (query.size() != 5 || block.size() != 5 || table.size() != 2 || block[3] != 2 * query[2] ||
      block[4] != query[4]) {
    return ffi::Error::InvalidArgument("attention is of q[B,T,K,G,H], pages[L,N,S,2K,H], ids[B,P]");
  }
  const Shape shape{query[0], query[1], query[2], query[3], query[4],
                    block[1], block[2], table[1], window,   softcap};
  const bool is_wide = pages.element_type() == ffi::F32;
  if (!is_wide && pages.element_type() != ffi::BF16) {
    return ffi::Error::InvalidArgument("pages are of f32 or bf16");
  }
  const auto run = is_wide ? Run<float> : Run<rooflight::Bf16>;
  return run(threads, shape, q, pages, ids, starts, lengths, layer, max->typed_data(),
             sum->typed_data(), out->typed_data());
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(PagedAttentionHandler, PagedAttention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<F32>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<S32>()
                                  .Arg<S32>()
                                  .Arg<S32>()
                                  .Arg<S32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Ret<F32>()
                                  .Attr<int64_t>("window")
                                  .Attr<float>("softcap"));
