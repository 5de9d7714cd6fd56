// Pack and unpack on the simulator: bytes equal to memcpy's, factors equal to reduce()'s.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "lightcc/base/half.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"

#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/kernels/bucket.hpp"
#include "lightcc_cuda/kernels/indices.hpp"

namespace lightcc::cuda::cuda_bucket_test {
namespace {

using testing::Region;
using testing::seed;

using Kernel = void (*)(BucketArguments);

/// Tensors and a bucket of elements of such sizes, filled with random bytes.
struct Bucket {
  explicit Bucket(std::vector<std::size_t> sizes,
                  std::size_t tensor_bytes,
                  std::size_t bucket_bytes,
                  bool aligned,
                  Rng& rng)
      : counts(std::move(sizes)) {
    const auto shift = [&](std::size_t bytes) {
      return aligned ? 0 : rng.below(2) == 0 ? rng.below(16) : rng.below(16 / bytes) * bytes;
    };
    for (const std::size_t count : counts) {
      firsts.push_back(total);
      tensors.emplace_back(count * tensor_bytes, shift(tensor_bytes)).randomize(rng);
      total += count;
    }
    bucket = Region(total * bucket_bytes, shift(bucket_bytes));
    bucket.randomize(rng);
  }

  BucketArguments arguments(bool unpacks, double factor = 1.0) {
    BucketArguments made{};
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      made.rows[i] = {tensors[i].data(), firsts[i]};
    }
    made.bucket = bucket.data();
    made.total = total;
    made.factor = factor;
    made.count = static_cast<u32>(tensors.size());
    made.unpacks = unpacks ? 1 : 0;
    return made;
  }

  std::vector<std::size_t> counts;
  std::vector<std::size_t> firsts;
  std::vector<Region> tensors;
  Region bucket{0};
  std::size_t total = 0;
};

std::vector<std::size_t> random_counts(Rng& rng) {
  std::vector<std::size_t> counts(1 + rng.below(12));
  for (std::size_t& count : counts) {
    count = rng.below(3) == 0 ? rng.below(9000) : rng.below(70);
  }
  return counts;
}

TEST(CudaBucket, copies_are_those_of_memcpy_at_any_alignment) {
  const std::array<Kernel, 4> kernels = {
      lightcc_copy_1, lightcc_copy_2, lightcc_copy_4, lightcc_copy_8};
  for (std::size_t width = 0; width < kernels.size(); ++width) {
    const std::size_t bytes = std::size_t{1} << width;
    for (std::uint64_t round = 0; round < 6; ++round) {
      LIGHTCC_TRACE("elements of " << bytes << " bytes, round " << round);
      Rng rng(seed() * 100 + round);
      Bucket made(random_counts(rng), bytes, bytes, round == 0, rng);
      Region wanted(made.total * bytes);
      for (std::size_t i = 0; i < made.tensors.size(); ++i) {
        std::copy_n(made.tensors[i].data(),
                    made.tensors[i].size_bytes(),
                    wanted.data() + made.firsts[i] * bytes);
      }
      const auto blocks = static_cast<u32>(1 + rng.below(5));
      testing::run(kernels[width], blocks, kBucketThreads, made.arguments(false), rng);
      EXPECT_EQ(made.bucket, wanted);
      std::vector<Region> packed = made.tensors;
      for (Region& tensor : made.tensors) {
        tensor.randomize(rng);
      }
      testing::run(kernels[width], blocks, kBucketThreads, made.arguments(true), rng);
      EXPECT_EQ(made.tensors, packed);
    }
  }
}

TEST(CudaBucket, takes_as_many_tensors_as_its_arguments_hold) {
  Rng rng(seed());
  std::vector<std::size_t> counts(kMaxBucketRows);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    counts[i] = i % 5 == 0 ? 0 : i % 7;
  }
  Bucket made(counts, 4, 4, false, rng);
  testing::run(lightcc_copy_4, 1, kBucketThreads, made.arguments(false), rng);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(counts[i] == 0 ? 0
                             : std::memcmp(made.bucket.data() + made.firsts[i] * 4,
                                           made.tensors[i].data(),
                                           counts[i] * 4),
              0)
        << "tensor " << i;
  }
}

// ---- Factors within one type: those of reduce().

struct SameType {
  DataType dtype;
  Kernel kernel;
};

constexpr std::array kSameTypes = {SameType{DataType::kUint8, lightcc_convert_u8_u8},
                                   SameType{DataType::kInt8, lightcc_convert_i8_i8},
                                   SameType{DataType::kUint16, lightcc_convert_u16_u16},
                                   SameType{DataType::kInt16, lightcc_convert_i16_i16},
                                   SameType{DataType::kInt32, lightcc_convert_i32_i32},
                                   SameType{DataType::kInt64, lightcc_convert_i64_i64},
                                   SameType{DataType::kFloat16, lightcc_convert_f16_f16},
                                   SameType{DataType::kBfloat16, lightcc_convert_bf16_bf16},
                                   SameType{DataType::kFloat32, lightcc_convert_f32_f32},
                                   SameType{DataType::kFloat64, lightcc_convert_f64_f64}};

TEST(CudaBucket, factors_give_the_bits_of_reduce) {
  for (const auto& [dtype, kernel] : kSameTypes) {
    for (const double factor : {1.0, 0.25, -3.7, 1e300}) {
      LIGHTCC_TRACE(data_type_name(dtype) << " times " << factor);
      Rng rng(seed());
      const std::size_t bytes = element_size(dtype);
      Bucket made({1500, 0, 4097, 3}, bytes, bytes, factor == 1.0, rng);
      const Reduction reduction{.dtype = dtype, .prescale = factor};
      Region wanted(made.total * bytes);
      for (std::size_t i = 0; i < made.tensors.size(); ++i) {
        const ReduceSource source{.data = made.tensors[i].bytes()};
        reduce({&source, 1},
               wanted.bytes() + made.firsts[i] * bytes,
               nullptr,
               made.counts[i],
               reduction,
               SimdLevel::kPlain);
      }
      testing::run(kernel, 2, kBucketThreads, made.arguments(false, factor), rng);
      EXPECT_EQ(made.bucket, wanted);
    }
  }
}

// ---- Conversions.

struct Conversion {
  DataType from;
  DataType to;
  Kernel kernel;
};

constexpr std::array kConversions = {
    Conversion{DataType::kFloat32, DataType::kFloat16, lightcc_convert_f32_f16},
    Conversion{DataType::kFloat32, DataType::kBfloat16, lightcc_convert_f32_bf16},
    Conversion{DataType::kFloat16, DataType::kFloat32, lightcc_convert_f16_f32},
    Conversion{DataType::kFloat16, DataType::kBfloat16, lightcc_convert_f16_bf16},
    Conversion{DataType::kBfloat16, DataType::kFloat32, lightcc_convert_bf16_f32},
    Conversion{DataType::kBfloat16, DataType::kFloat16, lightcc_convert_bf16_f16}};

float widened(DataType dtype, const u8* from) {
  if (dtype == DataType::kFloat32) {
    float value = 0.0F;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return dtype == DataType::kFloat16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

void narrow(DataType dtype, float value, u8* to) {
  const float kept = std::isnan(value) ? std::bit_cast<float>(0x7fc00000U) : value;
  if (dtype == DataType::kFloat32) {
    std::memcpy(to, &kept, sizeof(kept));
    return;
  }
  const std::uint16_t bits =
      dtype == DataType::kFloat16 ? float_to_half(kept) : float_to_bfloat16(kept);
  std::memcpy(to, &bits, sizeof(bits));
}

TEST(CudaBucket, converts_both_ways_as_the_definition_of_the_types_does) {
  for (const auto& [from, to, kernel] : kConversions) {
    for (const bool unpacks : {false, true}) {
      LIGHTCC_TRACE(data_type_name(from) << " to " << data_type_name(to) << ", " << unpacks);
      Rng rng(seed());
      const std::size_t from_bytes = element_size(from);
      const std::size_t to_bytes = element_size(to);
      Bucket made({4096, 5000, 7},
                  unpacks ? to_bytes : from_bytes,
                  unpacks ? from_bytes : to_bytes,
                  rng.below(2) == 0,
                  rng);
      const float factor = 0.3F;
      std::vector<Region> wanted = made.tensors;
      Region wanted_bucket(made.total * to_bytes);
      for (std::size_t i = 0; i < made.tensors.size(); ++i) {
        for (std::size_t j = 0; j < made.counts[i]; ++j) {
          const std::size_t at = made.firsts[i] + j;
          const u8* source = unpacks ? made.bucket.data() + at * from_bytes
                                     : made.tensors[i].data() + j * from_bytes;
          u8* target =
              unpacks ? wanted[i].data() + j * to_bytes : wanted_bucket.data() + at * to_bytes;
          narrow(to, widened(from, source) * factor, target);
        }
      }
      testing::run(kernel, 3, kBucketThreads, made.arguments(unpacks, double{factor}), rng);
      EXPECT_EQ(unpacks ? made.tensors : wanted, wanted);
      EXPECT_EQ(unpacks ? wanted_bucket : made.bucket, wanted_bucket);
    }
  }
}

// ---- Sizes beyond 32 bits.

/// Memory that takes pages only where it is touched.
class SparseRegion {
 public:
  explicit SparseRegion(std::size_t bytes)
      : bytes_(bytes),
        memory_(mmap(nullptr,
                     bytes,
                     PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                     -1,
                     0)) {
    if (testing::gpu_launcher != nullptr && is_there()) {
      testing::gpu_launcher->add_memory(memory_, bytes_);
    }
  }
  SparseRegion(const SparseRegion&) = delete;
  SparseRegion& operator=(const SparseRegion&) = delete;
  ~SparseRegion() {
    if (is_there()) {
      if (testing::gpu_launcher != nullptr) {
        testing::gpu_launcher->remove_memory(memory_);
      }
      munmap(memory_, bytes_);
    }
  }
  bool is_there() const { return memory_ != MAP_FAILED; }
  u8* data() const { return static_cast<u8*>(memory_); }

 private:
  std::size_t bytes_;
  void* memory_;
};

TEST(CudaBucket, elements_beyond_two_to_the_32nd_are_found) {
  constexpr std::size_t kLarge = (std::size_t{1} << 32) + 10 * kBucketTile + 17;
  constexpr std::size_t kTotal = kLarge + 3 * kBucketTile;
  if (testing::gpu_launcher != nullptr && testing::gpu_launcher->memory_bytes() < 3 * kTotal) {
    GTEST_SKIP() << "8 GiB on a GPU that has less than 12";
  }
  const SparseRegion bucket(kTotal);
  const SparseRegion tensor(kLarge);
  ASSERT_TRUE(bucket.is_there() && tensor.is_there());
  Rng rng(seed());
  Region last(kTotal - kLarge);
  last.randomize(rng);
  constexpr std::size_t kLookedAt = 2 * kBucketTile;
  for (std::size_t i = kLarge - kLookedAt; i < kLarge; ++i) {
    tensor.data()[i] = static_cast<u8>(rng.below(256));
  }
  BucketArguments arguments{};
  arguments.rows[0] = {tensor.data(), 0};
  arguments.rows[1] = {last.data(), kLarge};
  arguments.bucket = bucket.data();
  arguments.total = kTotal;
  arguments.count = 2;
  const auto tiles = static_cast<u32>(tiles_of(kTotal, kBucketTile));
  if (testing::gpu_launcher != nullptr) {
    testing::run(lightcc_copy_1, tiles, kBucketThreads, arguments, rng);
  } else {
    const simulator::Shape shape{
        .blocks = tiles, .threads = kBucketThreads, .seed = rng(), .first_block = tiles - 6};
    EXPECT_EQ(simulator::launch(shape, lightcc_copy_1, arguments), "");
  }
  EXPECT_EQ(std::memcmp(
                bucket.data() + kLarge - kLookedAt, tensor.data() + kLarge - kLookedAt, kLookedAt),
            0);
  EXPECT_EQ(std::memcmp(bucket.data() + kLarge, last.data(), last.size_bytes()), 0);
}

}  // namespace
}  // namespace lightcc::cuda::cuda_bucket_test
