// Linear layers and attention of a few rows, at the speed at which memory delivers weights, keys and values.
//
// A weight lies as torch has it, (out, in), and is read once for up to ROWS rows: a tile of several outputs at a time, the next
// tile on its way meanwhile. Keys are such a weight. All sums have one order for any number of rows up to WIDE (`native.py`),
// and what a mask hides adds zeros: a row has the same bits beside any others.

#include <immintrin.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

namespace {

// Outputs of a tile by rows, as many as there are registers for sums; they divide BLOCK.
constexpr int ROWS = 6;
#ifdef __AVX512F__
constexpr int LANES = 16, OUTPUTS[ROWS] = {8, 8, 6, 6, 4, 4};
#else
constexpr int LANES = 8, OUTPUTS[ROWS] = {8, 4, 4, 3, 2, 2};
#endif
#ifdef __AVX512BF16__
constexpr bool HAS_BF16 = true;
#else
constexpr bool HAS_BF16 = false;
#endif
constexpr int64_t BLOCK = 24;                // outputs that stay in a cache for all rows
constexpr int64_t FEWEST_PRODUCTS = 1 << 15; // of a thread
constexpr int64_t MOST_KEPT = 1 << 24;       // numbers that a thread keeps for its next call: 64 MiB
constexpr int64_t FIRST = 48;                // a row's keys are read from a multiple of it on: of BLOCK and LANES

// Added to a number in 0 to 1 and taken away, it leaves a multiple of 2^-35: sums of 2^17 such are exact, in any order.
constexpr double EXACT = 1 << 17;
constexpr float LOWEST = -std::numeric_limits<float>::infinity();

typedef float Floats __attribute__((vector_size(LANES * 4), aligned(4)));
typedef double Doubles __attribute__((vector_size(LANES * 8)));
typedef int32_t Words __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2), aligned(2)));

inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }

// A bfloat16 is the upper half of a float32.
inline Floats load(const uint16_t* from) {
  const Words words = __builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words) << 16;
  Floats floats;
  std::memcpy(&floats, &words, sizeof floats);
  return floats;
}

inline float to_float(float value) { return value; }

inline float to_float(uint16_t value) {
  const uint32_t word = uint32_t(value) << 16;
  float result;
  std::memcpy(&result, &word, sizeof result);
  return result;
}

inline void store(float* to, float value) { *to = value; }

inline void store(uint16_t* to, float value) { // rounded to the nearest, ties to even
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  *to = value != value ? 0x7FC0 : (word + 0x7FFF + ((word >> 16) & 1)) >> 16;
}

// Left to the compiler, a product and a sum are one operation for some numbers of rows and two for others.
#ifdef __AVX512F__
inline Floats all(float value) { return _mm512_set1_ps(value); }

inline Floats fused(Floats a, Floats b, Floats sum) { return _mm512_fmadd_ps(a, b, sum); }

inline __m256 halved(__m512 sums) {
  const __m256d upper = _mm512_extractf64x4_pd(_mm512_castps_pd(sums), 1);
  return _mm256_add_ps(_mm512_castps512_ps256(sums), _mm256_castpd_ps(upper));
}
#else
inline Floats all(float value) { return _mm256_set1_ps(value); }

inline Floats fused(Floats a, Floats b, Floats sum) { return _mm256_fmadd_ps(a, b, sum); }

inline __m256 halved(__m256 sums) { return sums; }
#endif

// The sums over the lanes of N vectors; `totals` has room for three more.
template <int N>
inline void add_lanes(const Floats* sums, float* totals) {
  for (int i = 0; i < N; i += 4) {
    __m256 four[4];
    for (int j = 0; j < 4; j++) four[j] = i + j < N ? halved(sums[i + j]) : _mm256_setzero_ps();
    const __m256 added = _mm256_hadd_ps(_mm256_hadd_ps(four[0], four[1]), _mm256_hadd_ps(four[2], four[3]));
    _mm_storeu_ps(totals + i, _mm_add_ps(_mm256_castps256_ps128(added), _mm256_extractf128_ps(added, 1)));
  }
}

// R outputs by M rows of the first `whole` inputs. `prefetches` the tile behind: the processor's own prefetching ends at pages.
template <int M, int R, typename T>
inline void tile(
    const float* input, const T* weight, int64_t K, int64_t stride, int64_t whole, bool prefetches, float* totals) {
  Floats sums[R][M] = {};
#pragma GCC unroll 4
  for (int64_t k = 0; k < whole; k += LANES) {
    Floats part[R];
    for (int r = 0; r < R; r++) {
      const T* at = weight + r * stride + k;
      if (prefetches) __builtin_prefetch(at + R * stride);
      part[r] = load(at);
    }
    for (int m = 0; m < M; m++) {
      const Floats row = load(input + m * K + k);
      for (int r = 0; r < R; r++) sums[r][m] = fused(row, part[r], sums[r][m]);
    }
  }
  add_lanes<R * M>(&sums[0][0], totals);
}

// `function` of groups of up to ROWS of M rows, of equal sizes or one apart: the first row, and how many.
template <typename Function>
inline void for_groups(int64_t M, const Function& function) {
  const int64_t num_groups = (M + ROWS - 1) / ROWS;
  for (int64_t group = 0; group < num_groups; group++) {
    const int64_t first = M * group / num_groups;
    function(first, M * (group + 1) / num_groups - first);
  }
}

// Products of `input (M, K)`, in float, with `weight (N, K)`, whose rows are `stride` apart: `output (M, width)`, N of each.
template <typename T, typename Output>
struct Product {
  const float* input;
  const T* weight;
  int64_t stride;
  const T* bias;
  Output* output;
  int64_t M, K, N, width;

  // Outputs from `begin` on, up to a block of them.
  void block(int64_t begin) const {
    static constexpr auto BY_ROWS = by_rows(std::make_integer_sequence<int, ROWS>{});
    for_groups(M, [&](int64_t first, int64_t num) {
      (this->*BY_ROWS[num - 1])(first, begin, std::min(N, begin + BLOCK), first == 0);
    });
  }

  // The same for `num` rows from `first` on.
  template <int num>
  void rows(int64_t first, int64_t begin, int64_t end, bool prefetches) const {
    constexpr int R = OUTPUTS[num - 1];
    const float* given = input + first * K;
    const int64_t whole = K / LANES * LANES;
    float totals[BLOCK * num + 3];
    int64_t n = begin;
    for (; n + R <= end; n += R)
      tile<num, R>(given, weight + n * stride, K, stride, whole, prefetches, totals + (n - begin) * num);
    for (; n < end; n++)
      tile<num, 1>(given, weight + n * stride, K, stride, whole, prefetches, totals + (n - begin) * num);
    for (n = begin; n < end; n++)
      for (int m = 0; m < num; m++) {
        float total = totals[(n - begin) * num + m];
        for (int64_t k = whole; k < K; k++)
          total = __builtin_fmaf(given[m * K + k], to_float(weight[n * stride + k]), total);
        store(output + (first + m) * width + n, total + (bias ? to_float(bias[n]) : 0.0f));
      }
  }

  template <int... num>
  static constexpr auto by_rows(std::integer_sequence<int, num...>) {
    return std::array{&Product::rows<num + 1>...};
  }
};

const float* as_floats(const float* values, int64_t, std::vector<float>&) { return values; }

const float* as_floats(const uint16_t* values, int64_t size, std::vector<float>& copy) {
  copy.resize(size);
  for (int64_t i = 0; i < size; i++) copy[i] = to_float(values[i]);
  return copy.data();
}

template <typename T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// `function` of 0, ..., num - 1, each about `work` products, on all threads.
template <typename Function>
void for_each(int64_t num, int64_t work, const Function& function) {
  const int64_t grain = std::max<int64_t>(1, FEWEST_PRODUCTS / (work + 1));
  torch::stable::parallel_for(0, num, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) function(i);
  });
}

// Call `function(head, i)` for each head and i below `num`, by default the number of its blocks of keys. Threads get equal numbers
// of blocks, each worth `work` products. `ends[head]` counts the blocks up to the end of a head, each of which has one or more.
template <typename Function>
void for_shares(const std::vector<int64_t>& ends, std::optional<int64_t> num, int64_t work, const Function& function) {
  const int64_t grain = std::max<int64_t>(1, FEWEST_PRODUCTS / (work + 1));
  torch::stable::parallel_for(0, ends.empty() ? 0 : ends.back(), grain, [&](int64_t begin, int64_t end) {
    int64_t head = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
    for (int64_t at = begin; at < end; at++) {
      if (at == ends[head]) head++;
      const int64_t first = head ? ends[head - 1] : 0, blocks = ends[head] - first, all = num.value_or(blocks);
      for (int64_t i = ((at - first) * all + blocks - 1) / blocks; i * blocks < (at - first + 1) * all; i++)
        function(head, i);
    }
  });
}

template <typename T>
void multiply(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, Tensor& output) {
  const int64_t N = weight.size(0), K = weight.size(1), M = input.numel() / K;
  std::vector<float> copy;
  const float* rows = as_floats(data_of<T>(input), M * K, copy);
  const Product<T, T> product{
      rows, data_of<T>(weight), K, bias ? data_of<T>(*bias) : nullptr, data_of<T>(output), M, K, N, N};
  for_each((N + BLOCK - 1) / BLOCK, BLOCK * K * M, [&](int64_t i) { product.block(i * BLOCK); });
}

template <std::size_t N>
Tensor call_torch(const char* name, std::array<StableIValue, N> stack) {
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

using torch::stable::detail::from;

Tensor linear(Tensor given, Tensor weight, std::optional<Tensor> bias) {
  const bool is_float = weight.scalar_type() == ScalarType::Float;
  if (given.numel() > WIDE * weight.size(1) && (is_float || HAS_BF16))
    return call_torch<3>("aten::linear", {from(given), from(weight), from(bias)});
  const Tensor input = torch::stable::contiguous(given);
  std::vector<int64_t> shape(input.sizes().begin(), input.sizes().end());
  shape.back() = weight.size(0);
  Tensor output = torch::stable::new_empty(input, shape);
  if (is_float) multiply<float>(input, weight, bias, output);
  else multiply<uint16_t>(input, weight, bias, output);
  return output;
}

// e to the power of `x`, to 2e-7; 0 below -87. By the polynomial of Cephes.
inline Floats exponential(Floats x) {
  const Floats shift = all(12582912.0f); // whose last bit is worth 1
  const Floats bounded = x < -87.0f ? all(-87.0f) : x;
  const Floats whole = fused(bounded, all(1.44269504f), shift) - shift;
  const Floats rest = fused(whole, all(2.12194440e-4f), fused(whole, all(-0.693359375f), bounded));
  Floats sum = all(1.9875691500e-4f);
  for (float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    sum = fused(sum, rest, all(factor));
  sum = fused(sum, rest * rest, rest + 1.0f);
  const Words exponent = __builtin_convertvector(whole + 127.0f, Words) << 23;
  Floats power;
  std::memcpy(&power, &exponent, sizeof power);
  return x < -87.0f ? Floats{} : sum * power;
}

// Turn n of `scores`, which have room for whole LANES, into weights that add up to 1.
template <typename T>
void soften(float* scores, int64_t n, const T* mask) {
  const int64_t padded = (n + LANES - 1) / LANES * LANES;
  if (mask)
    for (int64_t i = 0; i < n; i++) scores[i] += to_float(mask[i]);
  std::fill(scores + n, scores + padded, LOWEST);
  Floats tops = all(LOWEST);
  for (int64_t i = 0; i < padded; i += LANES) {
    const Floats some = load(scores + i);
    tops = some > tops ? some : tops;
  }
  float largest = tops[0];
  for (int i = 1; i < LANES; i++) largest = std::max(largest, tops[i]);
  const Floats shift = all(largest == LOWEST ? 0.0f : largest); // nothing may be seen
  Doubles sums = {};
  for (int64_t i = 0; i < padded; i += LANES) {
    const Floats weights = exponential(load(scores + i) - shift);
    std::memcpy(scores + i, &weights, sizeof weights);
    sums += (__builtin_convertvector(weights, Doubles) + EXACT) - EXACT;
  }
  double sum = 0;
  for (int i = 0; i < LANES; i++) sum += sums[i];
  const Floats factor = all(sum == 0 ? 0.0f : float(1 / sum));
  for (int64_t i = 0; i < padded; i += LANES) {
    const Floats weights = load(scores + i) * factor;
    std::memcpy(scores + i, &weights, sizeof weights);
  }
}

// Sums of `values (S, ..., 16)` by the weights of M rows.
template <int M, typename T>
void mix(const float* weights, int64_t padded, const T* values, int64_t stride, int64_t S, T* output, int64_t width) {
  constexpr int PARTS = 16 / LANES;
  Floats sums[M][PARTS] = {};
#pragma GCC unroll 2
  for (int64_t s = 0; s < S; s++, values += stride) {
    __builtin_prefetch(values + 16 * stride);
    for (int m = 0; m < M; m++)
      for (int i = 0; i < PARTS; i++)
        sums[m][i] = fused(all(weights[m * padded + s]), load(values + i * LANES), sums[m][i]);
  }
  for (int m = 0; m < M; m++)
    for (int i = 0; i < 16; i++) store(output + m * width + i, sums[m][i / LANES][i % LANES]);
}

template <typename T, int... M>
constexpr auto mixes(std::integer_sequence<int, M...>) {
  return std::array{&mix<M + 1, T>...};
}

struct Range {
  int64_t first, end;
};

// The range of the S slots that hold all that masks show to M queries; the masks are `stride` apart.
template <typename T>
Range visible(const T* mask, int64_t M, int64_t stride, int64_t S) {
  Range range{S, 0};
  for (int64_t m = 0; m < M; m++, mask += stride) {
    int64_t first = 0, end = S;
    while (first < range.first && to_float(mask[first]) == LOWEST) first++;
    while (end > range.end && to_float(mask[end - 1]) == LOWEST) end--;
    range = {first, end};
  }
  return {std::min(range.first, range.end) / FIRST * FIRST, range.end};
}

template <typename T>
void attend(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, float scale,
    Tensor& output) {
  static constexpr auto MIXES = mixes<T>(std::make_integer_sequence<int, ROWS>{});
  const int64_t num_heads = key.size(1), num = query.size(0) * num_heads, M = query.size(2), K = query.size(3);
  const int64_t S = key.size(2), width = value.size(3), padded = (S + LANES - 1) / LANES * LANES;
  static thread_local std::vector<float> kept; // of this thread, also where others read and write it
  std::unique_ptr<float[]> large;
  const int64_t size = num * M * (K + padded);
  if (size > MOST_KEPT) large.reset(new float[size]);
  else if (size > int64_t(kept.size())) kept.resize(size);
  float *rows = large ? large.get() : kept.data(), *weights = rows + num * M * K;
  const T* given = data_of<T>(query);
  for (int64_t i = 0; i < num * M * K; i++) rows[i] = scale * to_float(given[i]);
  const auto step = [](const Tensor& tensor, int dim) { return tensor.size(dim) > 1 ? tensor.stride(dim) : 0; };
  const auto of_head = [&](const Tensor& tensor, int64_t head) {
    return data_of<T>(tensor) + head / num_heads * step(tensor, 0) + head % num_heads * step(tensor, 1);
  };
  std::vector<Range> ranges(num, {0, S});
  std::vector<int64_t> ends(num); // of heads' blocks, one after the other
  for (int64_t head = 0, end = 0; head < num; head++) {
    if (mask && head && of_head(*mask, head) == of_head(*mask, head - 1)) ranges[head] = ranges[head - 1];
    else if (mask) ranges[head] = visible(of_head(*mask, head), M, step(*mask, 2), S);
    ends[head] = end += std::max<int64_t>(1, (ranges[head].end - ranges[head].first + BLOCK - 1) / BLOCK);
  }
  for_shares(ends, {}, BLOCK * K * M, [&](int64_t head, int64_t i) {
    const Product<T, float> product{
        rows + head * M * K, of_head(key, head), key.stride(2), nullptr, weights + head * M * padded, M, K, S, padded};
    product.block(ranges[head].first + i * BLOCK);
  });
  for_shares(ends, M, BLOCK * M * 8, [&](int64_t head, int64_t m) {
    const Range seen = ranges[head];
    const T* hidden = mask ? of_head(*mask, head) + m * step(*mask, 2) + seen.first : nullptr;
    soften(weights + (head * M + m) * padded + seen.first, seen.end - seen.first, hidden);
  });
  for_shares(ends, width / 16, BLOCK * M * width, [&](int64_t head, int64_t i) {
    const Range seen = ranges[head];
    const T* values = of_head(value, head) + seen.first * value.stride(2) + i * 16;
    for_groups(M, [&](int64_t begin, int64_t num_rows) {
      const int64_t row = head * M + begin;
      MIXES[num_rows - 1](
          weights + row * padded + seen.first, padded, values, value.stride(2), seen.end - seen.first,
          data_of<T>(output) + row * width + i * 16, width);
    });
  });
}

// `aten::scaled_dot_product_attention` of `query (batch, heads, M, K)`, `key (batch, heads, S, K)`, `value (batch, heads, S,
// width)` and an additive `mask`, which may be the same for each of the batch, of the heads, of the M.
Tensor attention(Tensor given, Tensor key, Tensor value, std::optional<Tensor> mask, double scale) {
  const bool is_ours = key.stride(3) == 1 && value.stride(3) == 1 && value.size(3) % 16 == 0 &&
      (!mask || (mask->scalar_type() == given.scalar_type() && mask->stride(3) == 1 && mask->size(3) == key.size(2)));
  if (given.size(2) > WIDE || !is_ours)
    return torch::stable::contiguous(call_torch<8>( // it may lie as the queries do
        "aten::scaled_dot_product_attention",
        {from(given), from(key), from(value), from(mask), from(0.0), from(false), from(std::optional<double>(scale)),
         from(false)}));
  const Tensor query = torch::stable::contiguous(given);
  Tensor output = torch::stable::new_empty(query, {query.size(0), query.size(1), query.size(2), value.size(3)});
  if (query.scalar_type() == ScalarType::Float) attend<float>(query, key, value, mask, scale, output);
  else attend<uint16_t>(query, key, value, mask, scale, output);
  return output;
}

} // namespace

STABLE_TORCH_LIBRARY(hf_speculative, library) {
  library.def("linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor");
  library.def("attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(hf_speculative, CPU, library) {
  library.impl("linear", TORCH_BOX(&linear));
  library.impl("attention", TORCH_BOX(&attention));
}
