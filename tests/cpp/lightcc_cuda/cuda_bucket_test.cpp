// Pack and unpack on the simulator: bytes equal to memcpy's.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <utility>

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
  explicit Bucket(std::vector<std::size_t> sizes, std::size_t element_bytes, bool aligned, Rng& rng)
      : counts(std::move(sizes)) {
    const auto shift = [&](std::size_t bytes) {
      return aligned ? 0 : rng.below(2) == 0 ? rng.below(16) : rng.below(16 / bytes) * bytes;
    };
    for (const std::size_t count : counts) {
      firsts.push_back(total);
      tensors.emplace_back(count * element_bytes, shift(element_bytes)).randomize(rng);
      total += count;
    }
    bucket = Region(total * element_bytes, shift(element_bytes));
    bucket.randomize(rng);
  }

  BucketArguments arguments(bool unpacks) {
    BucketArguments made{};
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      made.rows[i] = {tensors[i].data(), firsts[i]};
    }
    made.bucket = bucket.data();
    made.total = total;
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
  const std::array<Kernel, 3> kernels = {lightcc_copy_1, lightcc_copy_2, lightcc_copy_4};
  for (std::size_t width = 0; width < kernels.size(); ++width) {
    const std::size_t bytes = std::size_t{1} << width;
    for (std::uint64_t round = 0; round < 6; ++round) {
      LIGHTCC_TRACE("elements of " << bytes << " bytes, round " << round);
      Rng rng(seed() * 100 + round);
      Bucket made(random_counts(rng), bytes, round == 0, rng);
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
  Bucket made(counts, 4, false, rng);
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
