// Products of a few rows with a large weight, at the speed at which memory delivers the weight.
//
// A packed weight lies in blocks of 16 outputs, (blocks, in, 16): it is read once, from its first byte to its last, for up to
// ROWS rows. Each output is one sum over `in`, in order, for any number of rows: the same bits alone and in a batch.

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

constexpr int64_t BLOCK = 16;
#ifdef __AVX512F__
constexpr int LANES = 16, ROWS = 12; // with 32 registers
#else
constexpr int LANES = 8, ROWS = 6; // with 16
#endif
constexpr int PARTS = BLOCK / LANES;
constexpr int64_t BYTES_AHEAD = 2048;            // the processor's own prefetching ends at each page
constexpr int64_t FEWEST_PRODUCTS = 1 << 15;     // of a thread

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

// M rows by one block, (M, 16).
template <int M, typename T>
void tile(const float* input, const T* weight, int64_t K, float* sums) {
  Floats sum[M][PARTS] = {};
  for (int64_t k = 0; k < K; k++, weight += BLOCK) {
    __builtin_prefetch(reinterpret_cast<const char*>(weight) + BYTES_AHEAD);
    Floats part[PARTS];
    for (int i = 0; i < PARTS; i++) part[i] = load(weight + i * LANES);
    for (int m = 0; m < M; m++)
      for (int i = 0; i < PARTS; i++) sum[m][i] += input[m * K + k] * part[i];
  }
  std::memcpy(sums, sum, sizeof sum);
}

template <typename T>
using Tile = void (*)(const float*, const T*, int64_t, float*);

template <typename T, int... M>
constexpr auto tiles(std::integer_sequence<int, M...>) {
  return std::array<Tile<T>, sizeof...(M)>{tile<M + 1, T>...};
}

template <typename T>
constexpr auto TILES = tiles<T>(std::make_integer_sequence<int, ROWS>{});

const float* as_floats(const float* values, int64_t, std::vector<float>&) { return values; }

const float* as_floats(const uint16_t* values, int64_t size, std::vector<float>& copy) {
  copy.resize(size);
  for (int64_t i = 0; i < size; i++) copy[i] = to_float(values[i]);
  return copy.data();
}

template <typename T>
void multiply(const T* input, const T* weight, const T* bias, T* output, int64_t M, int64_t K, int64_t N) {
  std::vector<float> copy;
  const float* rows = as_floats(input, M * K, copy);
  const int64_t num_groups = (M + ROWS - 1) / ROWS;
  const int64_t grain = std::max<int64_t>(1, FEWEST_PRODUCTS / (BLOCK * K * M + 1));
  torch::stable::parallel_for(0, (N + BLOCK - 1) / BLOCK, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> block_copy;
    float sums[ROWS * BLOCK];
    for (int64_t n = begin * BLOCK; n < std::min(N, end * BLOCK); n += BLOCK) {
      const T* block = weight + n * K;
      const float* floats = num_groups > 2 ? as_floats(block, K * BLOCK, block_copy) : nullptr; // convert once
      for (int64_t group = 0; group < num_groups; group++) { // of equal sizes, or one apart
        const int64_t first = M * group / num_groups, num = M * (group + 1) / num_groups - first;
        if (floats) TILES<float>[num - 1](rows + first * K, floats, K, sums);
        else TILES<T>[num - 1](rows + first * K, block, K, sums);
        for (int64_t m = 0; m < num; m++)
          for (int64_t i = 0; i < std::min(BLOCK, N - n); i++)
            store(output + (first + m) * N + n + i, sums[m * BLOCK + i] + (bias ? to_float(bias[n + i]) : 0.0f));
      }
    }
  });
}

template <typename T>
void run(const Tensor& input, const Tensor& packed, const std::optional<Tensor>& bias, Tensor& output) {
  const int64_t K = packed.size(1), N = output.size(output.dim() - 1);
  multiply(
      static_cast<const T*>(input.data_ptr()), static_cast<const T*>(packed.data_ptr()),
      bias ? static_cast<const T*>(bias->data_ptr()) : nullptr, static_cast<T*>(output.data_ptr()),
      input.numel() / K, K, N);
}

Tensor packed_linear(Tensor given, Tensor packed, std::optional<Tensor> bias, int64_t num_outputs) {
  const Tensor input = torch::stable::contiguous(given);
  std::vector<int64_t> shape(input.sizes().begin(), input.sizes().end());
  shape.back() = num_outputs;
  Tensor output = torch::stable::new_empty(input, shape);
  if (input.scalar_type() == ScalarType::Float) run<float>(input, packed, bias, output);
  else run<uint16_t>(input, packed, bias, output);
  return output;
}

} // namespace

STABLE_TORCH_LIBRARY(hf_speculative, library) {
  library.def("packed_linear(Tensor input, Tensor packed, Tensor? bias, int num_outputs) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(hf_speculative, CPU, library) { library.impl("packed_linear", TORCH_BOX(&packed_linear)); }
