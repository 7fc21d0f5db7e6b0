// Products of few rows with weights in bfloat16, in the order of sums of AMX.
//
// One row's product reads each weight once, so that memory's speed is all that counts; oneDNN, which computes it with
// AMX, does not reach it. Here a thread streams through 32 outputs' weights with plain multiply-adds. AMX sums the even
// and the odd of 32 inputs apart, each in order, then adds both, and this to the sum of the inputs before (TDPBF16PS in
// Intel's manual); so does this, and the bits are the same.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

using bfloat16 = std::uint16_t;
constexpr std::ptrdiff_t kOutputs = 32;  // in one packed block of weights
constexpr std::ptrdiff_t kInputs = 32;   // that AMX sums at a time
constexpr std::ptrdiff_t kAhead = 4096;  // bytes between what is computed and what is fetched
constexpr int kHalves = 2;               // vectors of 16 outputs

// As AMX, takes and gives zero for numbers that are too small to be normal.
struct FlushDenormals {
  const unsigned saved = _mm_getcsr();
  FlushDenormals() { _mm_setcsr(saved | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON); }
  ~FlushDenormals() { _mm_setcsr(saved); }
};

inline __m512 even(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

inline __m512 odd(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

inline __m512 widen(const bfloat16* values) {
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

// Computes 32 outputs of each of `Rows` rows. `weights` are one block: pairs of inputs of 32 outputs, by pairs.
template <int Rows>
void compute_block(const bfloat16* rows, const bfloat16* weights, const bfloat16* bias, bfloat16* out,
                   std::ptrdiff_t inputs, std::ptrdiff_t outputs) {
  const FlushDenormals flushing;
  __m512 sums[Rows][kHalves] = {};
  for (std::ptrdiff_t first = 0; first < inputs; first += kInputs) {
    __m512 evens[Rows][kHalves] = {}, odds[Rows][kHalves] = {};
    for (std::ptrdiff_t input = first; input < first + kInputs; input += 2) {
      const bfloat16* pairs = weights + input * kOutputs;
      __m512i loaded[kHalves];
      for (int half = 0; half < kHalves; ++half) {
        loaded[half] = _mm512_loadu_si512(pairs + half * kOutputs);
        _mm_prefetch(reinterpret_cast<const char*>(pairs + half * kOutputs) + kAhead, _MM_HINT_T0);
      }
      for (int row = 0; row < Rows; ++row) {
        int pair;
        std::memcpy(&pair, rows + row * inputs + input, sizeof pair);
        const __m512i values = _mm512_set1_epi32(pair);
        for (int half = 0; half < kHalves; ++half) {
          evens[row][half] = _mm512_fmadd_ps(even(values), even(loaded[half]), evens[row][half]);
          odds[row][half] = _mm512_fmadd_ps(odd(values), odd(loaded[half]), odds[row][half]);
        }
      }
    }
    for (int row = 0; row < Rows; ++row)
      for (int half = 0; half < kHalves; ++half)
        sums[row][half] = _mm512_add_ps(sums[row][half], _mm512_add_ps(evens[row][half], odds[row][half]));
  }
  for (int row = 0; row < Rows; ++row)
    for (int half = 0; half < kHalves; ++half) {
      __m512 sum = sums[row][half];
      if (bias != nullptr) sum = _mm512_add_ps(sum, widen(bias + half * 16));
      const __m256bh rounded = _mm512_cvtneps_pbh(sum);
      std::memcpy(out + row * outputs + half * 16, &rounded, sizeof rounded);
    }
}

template <int Rows>
void compute(const bfloat16* rows, const bfloat16* weights, const bfloat16* bias, bfloat16* out,
             std::ptrdiff_t inputs, std::ptrdiff_t outputs) {
#pragma omp parallel for schedule(static)
  for (std::ptrdiff_t first = 0; first < outputs; first += kOutputs)
    compute_block<Rows>(rows, weights + first * inputs, bias == nullptr ? nullptr : bias + first, out + first, inputs,
                        outputs);
}

}  // namespace

// rows [count, inputs] @ weights.T [inputs, outputs] + bias -> out [count, outputs], with torch's threads. Inputs and
// outputs are multiples of 32, and the weights lie as oneDNN packs them for AMX: [outputs / 32][inputs / 2][32][2].
// `bias` may be null. Returns whether it has computed: it does for up to four rows.
extern "C" int holdfast_few_rows(const bfloat16* rows, const bfloat16* weights, const bfloat16* bias, bfloat16* out,
                                 std::ptrdiff_t count, std::ptrdiff_t inputs, std::ptrdiff_t outputs) {
  switch (count) {
    case 0: return 1;
    case 1: compute<1>(rows, weights, bias, out, inputs, outputs); return 1;
    case 2: compute<2>(rows, weights, bias, out, inputs, outputs); return 1;
    case 3: compute<3>(rows, weights, bias, out, inputs, outputs); return 1;
    case 4: compute<4>(rows, weights, bias, out, inputs, outputs); return 1;
    default: return 0;
  }
}
