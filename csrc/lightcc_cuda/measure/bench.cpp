#include "lightcc_cuda/measure/bench.hpp"

#include <algorithm>

namespace lightcc::cuda {

Result<Measured> Bench::measure(const std::string& name,
                                std::uint64_t elements,
                                std::uint64_t bytes,
                                const std::function<Status(std::size_t)>& enqueue,
                                const std::function<Status()>& prepare) {
  Measured measured{.name = name, .elements = elements, .bytes = bytes, .seconds = {}};
  measured.fits_cache = bytes != 0 && bytes <= cache_bytes_;
  LIGHTCC_RETURN_IF_ERROR(prepare());
  LIGHTCC_RETURN_IF_ERROR(enqueue(0));  // What is done once is done now.
  const auto enqueue_all = [&] {
    for (std::size_t i = 0; i < effort_.launches; ++i) {
      LIGHTCC_RETURN_IF_ERROR(enqueue(i));
    }
    return Status();
  };
  for (std::size_t round = 0; round < effort_.rounds; ++round) {
    LIGHTCC_ASSIGN_OR_RETURN(const Reading reading, stopwatch_.time(prepare, enqueue_all));
    measured.seconds.push_back(reading.seconds / static_cast<double>(effort_.launches));
    measured.has_gaps = measured.has_gaps || reading.has_gaps;
  }
  return measured;
}

Status Bench::write(Address to, std::span<const std::byte> bytes) const {
  if (bytes.empty()) {
    return {};
  }
  LIGHTCC_RETURN_IF_ERROR(
      driver_.check(driver_.call().copy_to_device(to, bytes.data(), bytes.size(), stream()),
                    "cuMemcpyHtoDAsync"));
  return wait();
}

Status Bench::spoil(Address to, std::size_t bytes) const {
  constexpr unsigned char kSpoilt = 0xA5;
  return driver_.check(driver_.call().fill(to, kSpoilt, bytes, stream()), "cuMemsetD8Async");
}

Result<std::uint64_t> Bench::differences(Address from, std::span<const std::byte> expected) const {
  std::vector<std::byte> bytes(expected.size());
  LIGHTCC_RETURN_IF_ERROR(
      driver_.check(driver_.call().copy_to_host(bytes.data(), from, bytes.size(), stream()),
                    "cuMemcpyDtoHAsync"));
  LIGHTCC_RETURN_IF_ERROR(wait());
  return count_differences(bytes, expected);
}

std::vector<float> made_up_values(std::size_t count, Rng& rng) {
  constexpr std::uint64_t kMask = (std::uint64_t{1} << 21) - 1;
  constexpr float kMiddle = 1.5F * static_cast<float>(kMask + 1);
  std::vector<float> values(count);
  for (float& value : values) {
    const std::uint64_t bits = rng();
    const std::uint64_t sum = (bits & kMask) + (bits >> 21 & kMask) + (bits >> 42 & kMask);
    value = (static_cast<float>(sum) - kMiddle) * 0x1p-21F;
  }
  return values;
}

std::uint64_t count_differences(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::size_t both = std::min(a.size(), b.size());
  std::uint64_t count = std::max(a.size(), b.size()) - both;
  for (std::size_t i = 0; i < both; ++i) {
    count += a[i] == b[i] ? 0 : 1;
  }
  return count;
}

}  // namespace lightcc::cuda
