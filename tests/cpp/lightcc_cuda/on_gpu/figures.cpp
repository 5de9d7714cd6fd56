// Figures of kernels and copies on the first GPU, by the library's classes:
//     cuda_kernel_tests --gtest_also_run_disabled_tests --gtest_filter=Figures.*
// Tensors of float32 have 1, 16 and 64 Mi elements, or up to LIGHTCC_TEST_FIGURES.
// A figure is a line of JSON. Its seconds are the median of rounds, each of equal launches between
// two events. They are queued behind fills, so that the GPU waits for none, and the figure says
// where it did, as in whole steps. Those of `call` are the host's.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/rng.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

#include "lightcc_cuda/driver/copy_launch.hpp"
#include "lightcc_cuda/driver/event.hpp"
#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/staging/topk_site_impl.hpp"

namespace lightcc::cuda::testing {
namespace {

using detail::at;
using Clock = std::chrono::steady_clock;
using Bytes = std::span<const std::byte>;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}
void must(const Status& status) {
  if (!status.ok()) {
    throw std::runtime_error(status.message());
  }
}
template <typename T>
T value(Result<T> result) {
  must(result.status());
  return std::move(*result);
}

/// One of a hundred has a magnitude from 1, and the others have less.
std::vector<float> make_values(std::size_t count) {
  Rng rng(count);
  std::vector<float> values(count);
  for (float& value : values) {
    const auto bits = rng();
    value = static_cast<float>(bits >> 40) * 0x1p-24F + (bits % 100 == 0 ? 1.0F : 0.0F);
    value = (bits >> 39 & 1) == 0 ? value : -value;
  }
  return values;
}

class Figures : public ::testing::Test {
 protected:
  /// `bytes`: that a launch reads and writes for each element; 0: few.
  void report(const char* name, std::size_t elements, int bytes, double seconds, bool is_right) {
    const double rate = seconds > 0.0 ? static_cast<double>(elements) * bytes / seconds / 1e9 : 0.0;
    std::printf(R"({"figure": "%s", "elements": %zu, "seconds": %.2e, )", name, elements, seconds);
    std::printf(R"("call": %.2e, "gb_per_s": %.1f, )", call_seconds_, rate);
    std::printf("\"has_waited\": %d, \"is_right\": %d}\n", has_waited_, is_right ? 1 : 0);
    EXPECT_TRUE(is_right) << name << " of " << elements << " elements";
  }
  DeviceMemory memory(std::size_t bytes) const {
    return value(allocate_device_memory(driver_, bytes));
  }
  void finish(Code code) const {
    must(driver_.check(code, "a copy"));
    must(stream_.wait());
  }
  void write(Address to, Bytes bytes) const {
    finish(call_.copy_to_device(to, bytes.data(), bytes.size(), stream_.get()));
  }
  bool has(Address from, Bytes wanted) const {
    std::vector<std::byte> found(wanted.size());
    finish(call_.copy_to_host(found.data(), from, found.size(), stream_.get()));
    return std::ranges::equal(found, wanted);
  }

  /// Seconds of one of `count` launches, on the GPU.
  double time(const auto& launch, int count = 20) {
    std::array<double, 5> seconds{};
    has_waited_ = 0;
    must(launch());  // What is done once is done now.
    for (double& of_round : seconds) {
      for (int i = 0; i < 64; ++i) {
        must(driver_.fill(fills_.get(), u8{0}, most_, stream_.get()));
      }
      const Event first = value(record_event(driver_, stream_.get(), Timing::kKnown));
      const auto begin = Clock::now();
      for (int i = 0; i < count; ++i) {
        must(launch());
      }
      call_seconds_ = seconds_since(begin) / count;
      const Event last = value(record_event(driver_, stream_.get(), Timing::kKnown));
      has_waited_ |= value(has_happened(driver_, first)) ? 1 : 0;
      must(stream_.wait());
      float milliseconds = 0.0F;
      must(driver_.elapsed_ms(&milliseconds, first.get(), last.get()));
      of_round = static_cast<double>(milliseconds) / 1e3 / count;
    }
    std::ranges::sort(seconds);
    return seconds[seconds.size() / 2];
  }

  void measure_copy(const char* name, const DeviceMemory& to, Bytes wanted, const auto& copy) {
    finish(call_.fill(to.get(), 0xA5, wanted.size(), stream_.get()));
    const double seconds = time(copy);
    report(name, wanted.size() / sizeof(float), 8, seconds, has(to.get(), wanted));
  }

  /// Copies tensors to a bucket and back. A bucket of one is a plain copy, of one element a launch.
  void measure_bucket(std::span<const std::size_t> sizes) {
    const std::vector<float> values =
        make_values(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
    const Bytes bytes = std::as_bytes(std::span(values));
    const DeviceMemory tensors = memory(bytes.size());
    const DeviceMemory bucket = memory(bytes.size());
    std::vector<BucketPart> parts;
    std::size_t offset = 0;
    for (const std::size_t size : sizes) {
      parts.push_back({tensors.get() + offset, offset, size * sizeof(float)});
      offset += size * sizeof(float);
    }
    const auto copy = [&](Copying direction) {
      return copy_bucket(driver_, *kernels_, bucket.get(), parts, direction, stream_.get());
    };
    write(tensors.get(), bytes);
    measure_copy("pack", bucket, bytes, [&] { return copy(Copying::kPack); });
    measure_copy("unpack", tensors, bytes, [&] { return copy(Copying::kUnpack); });
    measure_copy("copy by driver", bucket, bytes, [&] {
      return driver_.copy_on_device(bucket.get(), tensors.get(), bytes.size(), stream_.get());
    });
  }

  /// Steps of a shard whose residual is zero, none of which is committed, so all are equal.
  void measure_topk(std::size_t elements) {
    const std::vector<float> values = make_values(elements);
    std::vector<float> listed = values;
    std::erase_if(listed, [](float value) { return std::abs(value) < 1.0F; });
    const Bytes wanted = std::as_bytes(std::span(listed));
    const DeviceMemory input = memory(elements * sizeof(float));
    write(input.get(), std::as_bytes(std::span(values)));
    PinnedPool pinned(driver_);
    const Result<SharedKernels> kernels = shared_kernels(context_);
    TopkSite site(driver_, pinned, kernels);
    const auto shard = std::make_shared<TopkShard>();
    SavedShard zeros;
    zeros.numel = elements;
    must(site.load_shard(*shard, zeros, stream_.get()));
    const TopkRequest request{.k = listed.size(),
                              .capacity = topk_capacity(listed.size(), elements)};
    std::vector<std::byte> list(max_list_bytes(elements, request.capacity, {}));
    TopkOutcome outcome;
    const SiteStep step{.shard = shard,
                        .input = at<const std::byte>(input.get()),
                        .request = request,
                        .list = list,
                        .outcome = &outcome};
    const auto compress = [&] { return site.compress(std::span(&step, 1), stream_.get()); };
    for (const bool is_exact : {true, false}) {
      shard->forecast = {.threshold = is_exact ? 0.0 : 1.0, .ideal = 1.0, .k = request.k};
      const double seconds = time(compress, 1);
      const Bytes found = std::span(list).first(outcome.bytes).last(outcome.count * sizeof(float));
      const bool is_right = (outcome.passes == 1) != is_exact && std::ranges::equal(found, wanted);
      report(is_exact ? "exact step" : "step", elements, is_exact ? 36 : 12, seconds, is_right);
    }
    measure_select(step, wanted);
  }

  /// The pass over elements alone, with the threshold of the shard. Each needs begin before it.
  void measure_select(const SiteStep& step, Bytes wanted) {
    const std::size_t elements = step.shard->numel;
    const std::size_t capacity = step.request.capacity;
    const auto tiles = static_cast<unsigned>(tiles_of(elements, kTopkTile));
    const DeviceMemory row = memory(sizeof(TopkTensor));
    const DeviceMemory words = memory((6 * tiles + kTopkBins + 2 + capacity) * sizeof(u32));
    const DeviceMemory values = memory(capacity * sizeof(float));
    TopkArguments arguments{};
    TopkTensor tensor = detail::row_of(*step.shard);
    tensor.shard = reinterpret_cast<const u8*>(step.input);
    tensor.k = step.request.k;
    tensor.capacity = capacity;
    tensor.status = at<u64>(words.get());
    tensor.bins = reinterpret_cast<u32*>(tensor.status + 2 * tiles);
    tensor.block_begins = tensor.bins + kTopkBins;
    arguments.tile_counters = tensor.block_begins + tiles;
    tensor.offsets = reinterpret_cast<u16*>(arguments.tile_counters + 2);
    tensor.values = at<u8>(values.get());
    write(row.get(), std::as_bytes(std::span(&tensor, 1)));
    arguments.tensors = at<const TopkTensor>(row.get());
    arguments.count = 1;
    const auto run = [&](const char* name, unsigned blocks) {
      return launch(driver_, kernels_->find(name), blocks, kTopkThreads, stream_.get(), arguments);
    };
    const auto begin = [&] { return run("lightcc_topk_begin", 1); };
    const auto both = [&] {
      must(begin());
      return run("lightcc_topk_select_f32", tiles);
    };
    const double seconds = time(both) - time(begin);
    report("select", elements, 12, seconds, has(values.get(), wanted));
  }

  const char* given_ = std::getenv("LIGHTCC_TEST_FIGURES");
  std::size_t most_ = std::strtoull(given_ == nullptr ? "67108864" : given_, nullptr, 10);
  Driver driver_ = value(Driver::open());
  const Functions& call_ = driver_.call();
  Context context_ = value(Context::retain(driver_, 0));
  CurrentContext current_{context_};
  std::optional<KernelTable> kernels_;
  DeviceMemory fills_ = memory(most_);
  Stream stream_ = value(Stream::create(driver_));
  int has_waited_ = 0;
  double call_seconds_ = 0.0;
};

TEST_F(Figures, DISABLED_of_one_gpu) {
  for (const std::span<const Cubin> cubins : {std::span<const Cubin>(), cubins_in_library()}) {
    const auto begin = Clock::now();
    kernels_.emplace(value(KernelTable::load(driver_, cubins)));
    call_seconds_ = seconds_since(begin);
    report(cubins.empty() ? "compile" : "load", kernels_->size(), 0, 0.0, true);
  }
  measure_bucket(std::array{std::size_t{1}});
  for (const std::size_t size : {most_ / 64, most_ / 4, most_}) {
    measure_bucket(std::array{size});
    measure_topk(size);
  }
  std::array<std::size_t, 161> sizes{};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    sizes[i] = i % 3 == 0 ? most_ / 64 : 512;  // A matrix and two vectors of a layer.
  }
  measure_bucket(sizes);
}

}  // namespace
}  // namespace lightcc::cuda::testing
