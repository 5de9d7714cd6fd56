#include "lightcc/engine/wide_average.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "lightcc/collectives/sequence.hpp"

namespace lightcc {
namespace {

using Wide = std::vector<std::int32_t>;

Wide widen(const std::byte* in, std::size_t count, DataType dtype) {
  Wide wide(in == nullptr ? 0 : count);
  if (dtype == DataType::kInt8) {
    std::copy_n(reinterpret_cast<const std::int8_t*>(in), wide.size(), wide.begin());
  } else {
    std::copy_n(reinterpret_cast<const std::uint8_t*>(in), wide.size(), wide.begin());
  }
  return wide;
}

// An average lies between the values that it is of, so it fits again.
void narrow(const Wide& wide, std::byte* out) {
  if (out != nullptr) {
    std::ranges::transform(
        wide, out, [](std::int32_t value) { return static_cast<std::byte>(value); });
  }
}

std::byte* bytes_of(Wide& wide) {
  return wide.empty() ? nullptr : reinterpret_cast<std::byte*>(wide.data());
}

}  // namespace

std::unique_ptr<Work> wide_allreduce(Group& group,
                                     std::vector<TensorSpan> tensors,
                                     Reduction reduction) {
  const auto all = std::make_shared<std::vector<Wide>>();
  std::vector<TensorSpan> spans = tensors;
  for (TensorSpan& span : spans) {
    Wide& wide = all->emplace_back(widen(span.in, span.count, reduction.dtype));
    span.in = span.out = bytes_of(wide);
  }
  reduction.dtype = DataType::kInt32;
  const auto reduce = [&group, spans = std::move(spans), reduction] {
    return group.allreduce(spans, reduction);
  };
  const auto finish = [all, tensors = std::move(tensors)] {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      narrow((*all)[i], tensors[i].out);
    }
    return std::unique_ptr<Work>();
  };
  return std::make_unique<Sequence>(std::vector<Sequence::Start>{reduce, finish});
}

std::unique_ptr<Work> wide_reduce_scatter(Group& group,
                                          const std::byte* in,
                                          std::byte* out,
                                          std::vector<std::size_t> counts,
                                          Reduction reduction) {
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  const auto wide = std::make_shared<Wide>(widen(in, total, reduction.dtype));
  const auto share = std::make_shared<Wide>(counts[static_cast<std::size_t>(group.rank())]);
  reduction.dtype = DataType::kInt32;
  const auto reduce = [&group, wide, share, counts = std::move(counts), reduction] {
    return group.reduce_scatter(bytes_of(*wide), bytes_of(*share), counts, reduction);
  };
  const auto finish = [share, out] {
    narrow(*share, out);
    return std::unique_ptr<Work>();
  };
  return std::make_unique<Sequence>(std::vector<Sequence::Start>{reduce, finish});
}

}  // namespace lightcc
