// reduce() against a naive reference, and every SIMD level against plain, bit for bit: all types
// and operators, special values, counts around the seams of vectors and steps, any alignment, in
// place, two outputs, absent sources, factors.
#include "lightcc/collectives/kernels/reduce.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "lightcc/base/half.hpp"

namespace lightcc::reduce_test {
namespace {

using Buffer = std::vector<std::byte>;

std::vector<SimdLevel> levels() {
  std::vector<SimdLevel> found;
  for (const SimdLevel level : {SimdLevel::kPlain, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= detect_simd_level()) {
      found.push_back(level);
    }
  }
  return found;
}

// ---- The naive reference: one element at a time, straight from the header's words.

template <typename T>
T combine(ReduceOp op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case ReduceOp::kMin:
        return a < b || std::isnan(a) ? a : b;
      case ReduceOp::kMax:
        return a > b || std::isnan(a) ? a : b;
      case ReduceOp::kProduct:
        return a * b;
      default:
        return a + b;
    }
  } else {
    switch (op) {
      case ReduceOp::kMin:
        return a < b ? a : b;
      case ReduceOp::kMax:
        return a > b ? a : b;
      case ReduceOp::kProduct:
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
      default:
        return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    }
  }
}

template <typename T>
T scaled(T x, double factor) {
  if (factor == 1.0) {
    return x;
  }
  if constexpr (std::is_floating_point_v<T>) {
    return x * static_cast<T>(factor);
  } else {
    const double product = std::trunc(static_cast<double>(x) * factor);
    if (std::isnan(product)) {
      return 0;
    }
    if (product <= static_cast<double>(std::numeric_limits<T>::min())) {
      return std::numeric_limits<T>::min();
    }
    if (product >= static_cast<double>(std::numeric_limits<T>::max())) {
      return std::numeric_limits<T>::max();
    }
    return static_cast<T>(product);
  }
}

template <typename T>
T element(const std::byte* data, std::size_t i) {
  T value{};
  if (data != nullptr) {
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  }
  return value;
}

/// Lane: the type of the arithmetic; Load and Store convert Element from and to it.
template <typename Element, typename Lane, typename Load, typename Store>
Buffer naive_as(const std::vector<ReduceSource>& sources,
                std::size_t count,
                const Reduction& reduction,
                Load load,
                Store store) {
  Buffer out(count * sizeof(Element));
  for (std::size_t i = 0; i < count; ++i) {
    Lane result{};
    for (std::size_t k = 0; k < sources.size(); ++k) {
      Lane x = load(element<Element>(sources[k].data, i));
      x = sources[k].prescale ? scaled<Lane>(x, reduction.prescale) : x;
      result = k == 0 ? x : combine<Lane>(reduction.op, result, x);
    }
    result = scaled<Lane>(result, reduction.postscale);
    if constexpr (std::is_floating_point_v<Lane>) {
      result = std::isnan(result) ? std::numeric_limits<Lane>::quiet_NaN() : result;
    }
    const Element stored = store(result);
    std::memcpy(out.data() + i * sizeof(Element), &stored, sizeof(Element));
  }
  return out;
}

template <typename T>
Buffer naive_same(const std::vector<ReduceSource>& sources, std::size_t count, const Reduction& r) {
  const auto same = [](T x) { return x; };
  return naive_as<T, T>(sources, count, r, same, same);
}

Buffer naive_bool(const std::vector<ReduceSource>& sources, std::size_t count, const Reduction& r) {
  Buffer out(count);
  for (std::size_t i = 0; i < count; ++i) {
    bool all = true;
    bool any = false;
    for (const ReduceSource& source : sources) {
      const bool x = element<std::uint8_t>(source.data, i) != 0;
      all = all && x;
      any = any || x;
    }
    out[i] = std::byte{(r.op == ReduceOp::kMax ? any : all) ? std::uint8_t{1} : std::uint8_t{0}};
  }
  return out;
}

Buffer naive(const std::vector<ReduceSource>& sources, std::size_t count, const Reduction& r) {
  switch (r.dtype) {
    case DataType::kUint8:
      return naive_same<std::uint8_t>(sources, count, r);
    case DataType::kInt8:
      return naive_same<std::int8_t>(sources, count, r);
    case DataType::kUint16:
      return naive_same<std::uint16_t>(sources, count, r);
    case DataType::kInt16:
      return naive_same<std::int16_t>(sources, count, r);
    case DataType::kInt32:
      return naive_same<std::int32_t>(sources, count, r);
    case DataType::kInt64:
      return naive_same<std::int64_t>(sources, count, r);
    case DataType::kFloat16:
      return naive_as<std::uint16_t, float>(sources, count, r, half_to_float, float_to_half);
    case DataType::kFloat32:
      return naive_same<float>(sources, count, r);
    case DataType::kFloat64:
      return naive_same<double>(sources, count, r);
    case DataType::kBool:
      return naive_bool(sources, count, r);
    case DataType::kBfloat16:
      return naive_as<std::uint16_t, float>(
          sources, count, r, bfloat16_to_float, float_to_bfloat16);
  }
  return {};
}

// ---- Inputs.

template <typename Bits>
void put(std::byte* to, std::size_t i, Bits bits) {
  std::memcpy(to + i * sizeof(Bits), &bits, sizeof(Bits));
}

/// A third special values (zeros, infinities, NaNs quiet and signalling, subnormals, the largest),
/// a third random bits, a third numbers of ordinary size.
template <typename Bits, std::size_t N>
void fill_floats(std::byte* to,
                 std::size_t count,
                 std::mt19937_64& random,
                 const std::array<Bits, N>& special,
                 Bits one) {
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (sizeof(Bits) * 8 - 1));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t number = random();
    const auto sign = static_cast<Bits>((number & 1) != 0 ? kSign : 0);
    switch (number / 2 % 3) {
      case 0:
        put<Bits>(to, i, special[number / 8 % N] | sign);
        break;
      case 1:
        put<Bits>(to, i, static_cast<Bits>(random()));
        break;
      default:  // Within a few powers of two of one.
        put<Bits>(to, i, static_cast<Bits>((one + random() % (one / 8)) | sign));
        break;
    }
  }
}

void fill(DataType dtype, std::byte* to, std::size_t count, std::mt19937_64& random) {
  switch (dtype) {
    case DataType::kFloat16:
      return fill_floats<std::uint16_t, 8>(
          to, count, random, {0, 1, 0x3ff, 0x400, 0x7bff, 0x7c00, 0x7d01, 0x7e55}, 0x3c00);
    case DataType::kBfloat16:
      return fill_floats<std::uint16_t, 8>(
          to, count, random, {0, 1, 0x7f, 0x80, 0x7f7f, 0x7f80, 0x7f81, 0x7fd5}, 0x3f80);
    case DataType::kFloat32:
      return fill_floats<std::uint32_t, 8>(
          to,
          count,
          random,
          {0, 1, 0x7fffff, 0x800000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc12345},
          0x3f800000);
    case DataType::kFloat64:
      return fill_floats<std::uint64_t, 8>(to,
                                           count,
                                           random,
                                           {0,
                                            1,
                                            0xfffffffffffff,
                                            0x10000000000000,
                                            0x7fefffffffffffff,
                                            0x7ff0000000000000,
                                            0x7ff0000000000001,
                                            0x7ff8000000012345},
                                           0x3ff0000000000000);
    default:
      break;
  }
  const std::size_t size = element_size(dtype);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t value = random();
    switch (value % 4) {
      case 0:  // Small, of either sign, for bool often zero.
        value = (value >> 8) % 8 - 4;
        break;
      case 1:  // The ends of the type.
        value = (std::uint64_t{1} << (size * 8 - 1)) - (value >> 8) % 2;
        break;
      default:
        break;
    }
    if (dtype == DataType::kBool) {
      value = value % 3;  // 2: any nonzero byte is true.
    }
    std::memcpy(to + i * size, &value, size);
  }
}

// ---- One case.

constexpr std::size_t kGuard = 64;
constexpr std::byte kGuardByte{0xa5};

/// `count` elements somewhere inside a buffer whose other bytes must stay as they are.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t shift)
      : at_(kGuard + shift), bytes_(bytes), storage_(at_ + bytes + kGuard, kGuardByte) {}
  std::byte* data() { return storage_.data() + at_; }
  bool holds(const Buffer& expected) {
    return expected.size() == bytes_ &&
           (bytes_ == 0 || std::memcmp(data(), expected.data(), bytes_) == 0);
  }
  bool untouched_around() const {
    const auto is_guard = [](std::byte b) { return b == kGuardByte; };
    const auto begin = storage_.begin();
    return std::all_of(begin, begin + static_cast<std::ptrdiff_t>(at_), is_guard) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(at_ + bytes_), storage_.end(), is_guard);
  }

 private:
  std::size_t at_;
  std::size_t bytes_;
  Buffer storage_;
};

struct Case {
  Reduction reduction;
  std::size_t num_sources = 2;
  std::size_t count = 0;
  std::size_t shift_elements = 0;  ///< Misaligns every buffer, each by another amount.
  int in_place = -1;               ///< The source that `out` is; -1: none.
  bool two_outputs = false;
  unsigned absent = 0;    ///< Bit k: source k is null.
  unsigned unscaled = 0;  ///< Bit k: source k is scaled already.
};

std::string describe(const Case& c, SimdLevel level) {
  return std::string(data_type_name(c.reduction.dtype)) + " " + reduce_op_name(c.reduction.op) +
         " sources=" + std::to_string(c.num_sources) + " count=" + std::to_string(c.count) +
         " shift=" + std::to_string(c.shift_elements) + " in_place=" + std::to_string(c.in_place) +
         " two_outputs=" + std::to_string(static_cast<int>(c.two_outputs)) +
         " absent=" + std::to_string(c.absent) + " unscaled=" + std::to_string(c.unscaled) +
         " prescale=" + std::to_string(c.reduction.prescale) +
         " postscale=" + std::to_string(c.reduction.postscale) + " at " + simd_level_name(level);
}

void run(const Case& c, std::mt19937_64& random) {
  const std::size_t size = element_size(c.reduction.dtype);
  const std::size_t bytes = c.count * size;
  std::vector<Buffer> inputs(c.num_sources, Buffer(bytes));
  std::vector<ReduceSource> sources;
  for (std::size_t k = 0; k < c.num_sources; ++k) {
    fill(c.reduction.dtype, inputs[k].data(), c.count, random);
    const bool absent = ((c.absent >> k) & 1) != 0;
    sources.push_back({absent ? nullptr : inputs[k].data(), ((c.unscaled >> k) & 1) == 0});
  }
  const Buffer expected = naive(sources, c.count, c.reduction);
  for (const SimdLevel level : levels()) {
    std::vector<Guarded> buffers;
    for (std::size_t k = 0; k < c.num_sources; ++k) {
      buffers.emplace_back(bytes, c.shift_elements * (k + 1) * size);
      std::copy(inputs[k].begin(), inputs[k].end(), buffers[k].data());
    }
    std::vector<ReduceSource> placed = sources;
    for (std::size_t k = 0; k < c.num_sources; ++k) {
      placed[k].data = sources[k].data != nullptr ? buffers[k].data() : nullptr;
    }
    Guarded separate(bytes, c.shift_elements * size);
    Guarded second(bytes, c.shift_elements * 3 * size);
    Guarded& out = c.in_place < 0 ? separate : buffers[static_cast<std::size_t>(c.in_place)];
    reduce(
        placed, out.data(), c.two_outputs ? second.data() : nullptr, c.count, c.reduction, level);
    ASSERT_TRUE(out.holds(expected)) << describe(c, level);
    ASSERT_TRUE(out.untouched_around()) << describe(c, level);
    ASSERT_TRUE(second.untouched_around()) << describe(c, level);
    if (c.two_outputs) {
      ASSERT_TRUE(second.holds(expected)) << describe(c, level);
    }
    for (std::size_t k = 0; k < c.num_sources; ++k) {
      if (static_cast<int>(k) != c.in_place) {
        ASSERT_TRUE(buffers[k].holds(inputs[k])) << "source changed: " << describe(c, level);
      }
    }
  }
}

constexpr std::array kOps{ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

class ReduceTypes : public testing::TestWithParam<DataType> {
 protected:
  /// The operators that the type has.
  static std::vector<ReduceOp> ops() {
    std::vector<ReduceOp> found;
    for (const ReduceOp op : kOps) {
      if (is_reducible(GetParam(), op)) {
        found.push_back(op);
      }
    }
    return found;
  }
  std::mt19937_64 random_{static_cast<std::uint64_t>(GetParam()) + 1};
};

TEST_P(ReduceTypes, every_level_agrees_with_the_reference_at_every_seam) {
  // Around one vector and one step (4 vectors) of 16, 32 and 64 bytes, for lanes of 1 to 8 bytes.
  constexpr std::array<std::size_t, 24> kCounts{
      0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 533};
  for (const ReduceOp op : ops()) {
    for (const std::size_t num_sources : std::initializer_list<std::size_t>{1, 2, 3, 4, 5, 16}) {
      for (const std::size_t count : kCounts) {
        for (const int in_place : {-1, 0, static_cast<int>(num_sources) - 1}) {
          for (const std::size_t shift : std::initializer_list<std::size_t>{0, 1, 3}) {
            Case c{.reduction = {.dtype = GetParam(), .op = op}};
            c.num_sources = num_sources;
            c.count = count;
            c.shift_elements = shift;
            c.in_place = in_place;
            c.two_outputs = (count + shift) % 2 == 0;
            ASSERT_NO_FATAL_FAILURE(run(c, random_));
          }
        }
      }
    }
  }
}

TEST_P(ReduceTypes, factors_absent_sources_and_scaled_partials_mean_what_the_header_says) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const ReduceOp op : ops()) {
    for (const double prescale : {1.0, 0.5, 1.0 / 3, -7.0, 0.0, 1e300, infinity, nan}) {
      for (const double postscale : {1.0, 0.25, -1.0 / 7, 3e9, infinity}) {
        for (const std::size_t num_sources : std::initializer_list<std::size_t>{1, 2, 3, 4, 5}) {
          for (const unsigned mask : {0U, 1U, 2U, 0x1fU}) {
            Case c{.reduction = {GetParam(), op, prescale, postscale}};
            c.num_sources = num_sources;
            c.count = 303;
            c.absent = mask;
            c.unscaled = mask >> 1;
            ASSERT_NO_FATAL_FAILURE(run(c, random_));
            c.absent = 0;
            c.unscaled = mask;
            c.in_place = 0;
            ASSERT_NO_FATAL_FAILURE(run(c, random_));
          }
        }
      }
    }
  }
}

TEST_P(ReduceTypes, every_pattern_of_sixteen_bits_is_reduced_right) {
  // For 16-bit types each pattern occurs as the first operand; for others this is more random
  // input.
  const std::size_t size = element_size(GetParam());
  constexpr std::size_t kCount = 65536;
  Buffer a(kCount * size);
  Buffer b(kCount * size);
  fill(GetParam(), a.data(), kCount, random_);
  fill(GetParam(), b.data(), kCount, random_);
  if (size == 2) {
    for (std::size_t i = 0; i < kCount; ++i) {
      put(a.data(), i, static_cast<std::uint16_t>(i));
    }
  }
  for (const ReduceOp op : ops()) {
    for (const double postscale : {1.0, 0.5}) {
      const Reduction reduction{.dtype = GetParam(), .op = op, .postscale = postscale};
      for (const std::vector<ReduceSource>& sources :
           {std::vector<ReduceSource>{{a.data()}},
            std::vector<ReduceSource>{{a.data()}, {b.data()}},
            std::vector<ReduceSource>{{b.data()}, {a.data()}}}) {
        const Buffer expected = naive(sources, kCount, reduction);
        for (const SimdLevel level : levels()) {
          Buffer out(kCount * size);
          reduce(sources, out.data(), nullptr, kCount, reduction, level);
          ASSERT_TRUE(out == expected) << data_type_name(GetParam()) << " " << reduce_op_name(op)
                                       << " at " << simd_level_name(level);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(types,
                         ReduceTypes,
                         testing::Values(DataType::kUint8,
                                         DataType::kInt8,
                                         DataType::kUint16,
                                         DataType::kInt16,
                                         DataType::kInt32,
                                         DataType::kInt64,
                                         DataType::kFloat16,
                                         DataType::kFloat32,
                                         DataType::kFloat64,
                                         DataType::kBool,
                                         DataType::kBfloat16),
                         [](const auto& type) { return data_type_name(type.param); });

// ---- Words of the header that deserve a number.

float reduce_two(float a, float b, ReduceOp op, SimdLevel level) {
  const std::array sources{ReduceSource{reinterpret_cast<const std::byte*>(&a)},
                           ReduceSource{reinterpret_cast<const std::byte*>(&b)}};
  float out = 0;
  reduce(sources, reinterpret_cast<std::byte*>(&out), nullptr, 1, {.op = op}, level);
  return out;
}

TEST(reduce, a_nan_wins_min_and_max_from_either_side) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const SimdLevel level : levels()) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      EXPECT_TRUE(std::isnan(reduce_two(nan, 1.0F, op, level)));
      EXPECT_TRUE(std::isnan(reduce_two(1.0F, nan, op, level)));
    }
  }
}

TEST(reduce, of_two_zeros_min_and_max_keep_the_later) {
  for (const SimdLevel level : levels()) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      EXPECT_FALSE(std::signbit(reduce_two(-0.0F, 0.0F, op, level)));
      EXPECT_TRUE(std::signbit(reduce_two(0.0F, -0.0F, op, level)));
    }
  }
}

TEST(reduce, a_nan_result_is_the_one_nan) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const SimdLevel level : levels()) {
    for (const float sum :
         {reduce_two(infinity, -infinity, ReduceOp::kSum, level),
          reduce_two(std::bit_cast<float>(0xffc12345U), 1.0F, ReduceOp::kSum, level),
          reduce_two(1.0F, std::bit_cast<float>(0x7f800001U), ReduceOp::kMin, level)}) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(sum), 0x7fc00000U) << simd_level_name(level);
    }
  }
}

TEST(reduce, halves_accumulate_in_float32_and_round_once) {
  // 2048 + 1 is not a half; 2048 + 1 + 1 is.
  const std::array<std::uint16_t, 3> x{float_to_half(2048), float_to_half(1), float_to_half(1)};
  std::vector<ReduceSource> sources;
  for (const std::uint16_t& half : x) {
    sources.push_back({reinterpret_cast<const std::byte*>(&half)});
  }
  for (const SimdLevel level : levels()) {
    std::uint16_t out = 0;
    reduce(sources,
           reinterpret_cast<std::byte*>(&out),
           nullptr,
           1,
           {.dtype = DataType::kFloat16},
           level);
    EXPECT_EQ(half_to_float(out), 2050.0F) << simd_level_name(level);
  }
}

#if defined(__x86_64__)
TEST(reduce, the_callers_float_mode_changes_nothing_and_is_kept) {
  constexpr unsigned kFlushAndRoundUp = 0x8040 | 0x4000;  // FTZ, DAZ, towards +infinity.
  const unsigned before = _mm_getcsr();
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const SimdLevel level : levels()) {
    _mm_setcsr(before | kFlushAndRoundUp);
    const float denormal = reduce_two(tiny, tiny, ReduceOp::kSum, level);
    const float rounded = reduce_two(1.0F, 0x1p-30F, ReduceOp::kSum, level);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(denormal), 2U) << simd_level_name(level);
    EXPECT_EQ(rounded, 1.0F) << simd_level_name(level);
    EXPECT_EQ(after & 0xffc0U, (before | kFlushAndRoundUp) & 0xffc0U);
  }
}
#endif

}  // namespace
}  // namespace lightcc::reduce_test
