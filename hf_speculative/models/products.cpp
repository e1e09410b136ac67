// Products of a few rows with a large weight, at the speed at which memory delivers the weight.
//
// A weight lies as torch has it, (out, in), and is read once for up to ROWS rows: a tile of several outputs at a time, the next
// tile on its way meanwhile. Each product is a sum of LANES sums, in one order for any number of rows up to WIDE.

#include <immintrin.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cstring>
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
constexpr int64_t WIDE = 128;                // rows from which torch's own products are faster
constexpr int64_t FEWEST_PRODUCTS = 1 << 15; // of a thread

typedef float Floats __attribute__((vector_size(LANES * 4), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4), aligned(4)));
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
inline Floats fused(Floats a, Floats b, Floats sum) { return _mm512_fmadd_ps(a, b, sum); }

inline __m256 halved(__m512 sums) {
  const __m256d upper = _mm512_extractf64x4_pd(_mm512_castps_pd(sums), 1);
  return _mm256_add_ps(_mm512_castps512_ps256(sums), _mm256_castpd_ps(upper));
}
#else
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
inline void tile(const float* input, const T* weight, int64_t K, int64_t whole, bool prefetches, float* totals) {
  Floats sums[R][M] = {};
#pragma GCC unroll 4
  for (int64_t k = 0; k < whole; k += LANES) {
    Floats part[R];
    for (int r = 0; r < R; r++) {
      const T* at = weight + r * K + k;
      if (prefetches) __builtin_prefetch(at + R * K);
      part[r] = load(at);
    }
    for (int m = 0; m < M; m++) {
      const Floats row = load(input + m * K + k);
      for (int r = 0; r < R; r++) sums[r][m] = fused(row, part[r], sums[r][m]);
    }
  }
  add_lanes<R * M>(&sums[0][0], totals);
}

template <typename T>
struct Product {
  const float* input;
  const T *weight, *bias;
  T* output;
  int64_t K, N;

  // M rows from `first` on by a block of outputs, those from `begin` to `end`.
  template <int M>
  void run(int64_t first, int64_t begin, int64_t end, bool prefetches) const {
    constexpr int R = OUTPUTS[M - 1];
    const float* rows = input + first * K;
    const int64_t whole = K / LANES * LANES;
    float totals[BLOCK * M + 3];
    int64_t n = begin;
    for (; n + R <= end; n += R) tile<M, R>(rows, weight + n * K, K, whole, prefetches, totals + (n - begin) * M);
    for (; n < end; n++) tile<M, 1>(rows, weight + n * K, K, whole, prefetches, totals + (n - begin) * M);
    for (n = begin; n < end; n++)
      for (int m = 0; m < M; m++) {
        float total = totals[(n - begin) * M + m];
        for (int64_t k = whole; k < K; k++) total = __builtin_fmaf(rows[m * K + k], to_float(weight[n * K + k]), total);
        store(output + (first + m) * N + n, total + (bias ? to_float(bias[n]) : 0.0f));
      }
  }

  template <int... M>
  static constexpr auto by_rows(std::integer_sequence<int, M...>) {
    return std::array{&Product::run<M + 1>...};
  }
};

const float* as_floats(const float* values, int64_t, std::vector<float>&) { return values; }

const float* as_floats(const uint16_t* values, int64_t size, std::vector<float>& copy) {
  copy.resize(size);
  for (int64_t i = 0; i < size; i++) copy[i] = to_float(values[i]);
  return copy.data();
}

template <typename T>
void multiply(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, Tensor& output) {
  static constexpr auto BY_ROWS = Product<T>::by_rows(std::make_integer_sequence<int, ROWS>{});
  const int64_t N = weight.size(0), K = weight.size(1), M = input.numel() / K;
  std::vector<float> copy;
  const Product<T> product{
      as_floats(static_cast<const T*>(input.data_ptr()), M * K, copy), static_cast<const T*>(weight.data_ptr()),
      bias ? static_cast<const T*>(bias->data_ptr()) : nullptr, static_cast<T*>(output.data_ptr()), K, N};
  const int64_t num_groups = (M + ROWS - 1) / ROWS;
  const int64_t grain = std::max<int64_t>(1, FEWEST_PRODUCTS / (BLOCK * K * M + 1));
  torch::stable::parallel_for(0, (N + BLOCK - 1) / BLOCK, grain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * BLOCK; n < std::min(N, end * BLOCK); n += BLOCK)
      for (int64_t group = 0; group < num_groups; group++) { // of equal sizes, or one apart
        const int64_t first = M * group / num_groups, num = M * (group + 1) / num_groups - first;
        (product.*BY_ROWS[num - 1])(first, n, std::min(N, n + BLOCK), group == 0);
      }
  });
}

Tensor linear(Tensor given, Tensor weight, std::optional<Tensor> bias) {
  const bool is_float = weight.scalar_type() == ScalarType::Float;
  if (given.numel() > WIDE * weight.size(1) && (is_float || HAS_BF16)) {
    std::array<StableIValue, 3> stack{
        torch::stable::detail::from(given), torch::stable::detail::from(weight), torch::stable::detail::from(bias)};
    STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION));
    return torch::stable::detail::to<Tensor>(stack[0]);
  }
  const Tensor input = torch::stable::contiguous(given);
  std::vector<int64_t> shape(input.sizes().begin(), input.sizes().end());
  shape.back() = weight.size(0);
  Tensor output = torch::stable::new_empty(input, shape);
  if (is_float) multiply<float>(input, weight, bias, output);
  else multiply<uint16_t>(input, weight, bias, output);
  return output;
}

} // namespace

STABLE_TORCH_LIBRARY(hf_speculative, library) {
  library.def("linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(hf_speculative, CPU, library) { library.impl("linear", TORCH_BOX(&linear)); }
