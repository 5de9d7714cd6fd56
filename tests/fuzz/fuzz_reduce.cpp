// Any reduction that the input describes must have the same bits at every SIMD level, in both
// outputs, and touch nothing else: buffers are allocations of exactly the right size, for
// AddressSanitizer to watch.
//
// Input: dtype, op, number of sources, in-place source, two outputs, offset, absent and unscaled
// masks (a byte each), prescale, postscale (float64), then the sources' elements one source after
// another.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"

namespace {

using lightcc::ReduceSource;
using lightcc::SimdLevel;

constexpr std::size_t kMaxSources = 17;

struct Job {
  lightcc::Reduction reduction;
  std::vector<std::span<const std::byte>> inputs;
  std::size_t count = 0;
  std::size_t in_place = 0;  ///< inputs.size(): none.
  bool two_outputs = false;
  std::size_t offset_bytes = 0;
  unsigned absent = 0;
  unsigned unscaled = 0;
};

bool parse(std::span<const std::byte> bytes, Job& job) {
  lightcc::ByteReader reader(bytes);
  job.reduction.dtype =
      static_cast<lightcc::DataType>(reader.number<std::uint8_t>() % lightcc::kDataTypeCount);
  job.reduction.op =
      static_cast<lightcc::ReduceOp>(reader.number<std::uint8_t>() % lightcc::kReduceOpCount);
  const std::size_t num_sources = reader.number<std::uint8_t>() % kMaxSources + 1U;
  job.in_place = reader.number<std::uint8_t>() % (num_sources + 1);
  job.two_outputs = reader.number<std::uint8_t>() % 2 != 0;
  const std::size_t size = lightcc::element_size(job.reduction.dtype);
  job.offset_bytes = reader.number<std::uint8_t>() % 64U / size * size;
  job.absent = reader.number<std::uint8_t>();
  job.unscaled = reader.number<std::uint8_t>();
  job.reduction.prescale = reader.number<double>();
  job.reduction.postscale = reader.number<double>();
  job.count = reader.remaining() / num_sources / size;
  for (std::size_t k = 0; k < num_sources; ++k) {
    job.inputs.push_back(reader.raw(job.count * size));
  }
  return reader.ok() && job.count > 0;
}

/// An allocation that ends where the elements end.
class Buffer {
 public:
  Buffer(std::size_t offset_bytes, std::size_t bytes)
      : offset_(offset_bytes), storage_(std::make_unique<std::byte[]>(offset_bytes + bytes)) {}
  std::byte* data() { return storage_.get() + offset_; }

 private:
  std::size_t offset_;
  std::unique_ptr<std::byte[]> storage_;
};

std::vector<std::byte> run(const Job& job, SimdLevel level) {
  const std::size_t bytes = job.inputs.front().size();
  std::vector<Buffer> buffers;
  std::vector<ReduceSource> sources;
  for (std::size_t k = 0; k < job.inputs.size(); ++k) {
    buffers.emplace_back(job.offset_bytes, bytes);
    std::memcpy(buffers.back().data(), job.inputs[k].data(), bytes);
    const bool absent = k < 8 && ((job.absent >> k) & 1U) != 0;
    const bool unscaled = k < 8 && ((job.unscaled >> k) & 1U) != 0;
    sources.push_back({absent ? nullptr : buffers.back().data(), !unscaled});
  }
  Buffer separate(job.offset_bytes, bytes);
  Buffer second(0, bytes);
  Buffer& out = job.in_place < buffers.size() ? buffers[job.in_place] : separate;
  lightcc::reduce(sources,
                  out.data(),
                  job.two_outputs ? second.data() : nullptr,
                  job.count,
                  job.reduction,
                  level);
  if (job.two_outputs && std::memcmp(out.data(), second.data(), bytes) != 0) {
    std::fprintf(stderr, "the outputs differ at %s\n", lightcc::simd_level_name(level));
    std::abort();
  }
  return {out.data(), out.data() + bytes};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Job job;
  if (!parse(std::as_bytes(std::span(data, size)), job)) {
    return 0;
  }
  const std::vector<std::byte> plain = run(job, SimdLevel::kPlain);
  for (const SimdLevel level : {SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= lightcc::detect_simd_level() && run(job, level) != plain) {
      std::fprintf(stderr, "%s differs from plain\n", lightcc::simd_level_name(level));
      std::abort();
    }
  }
  return 0;
}
