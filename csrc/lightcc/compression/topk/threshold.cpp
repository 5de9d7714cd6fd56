#include "lightcc/compression/topk/threshold.hpp"

#include <algorithm>

namespace lightcc::detail {

std::optional<double> MagnitudeSample::magnitude_reached_by(std::size_t k,
                                                            std::size_t count) const {
  if (count == 0 || reached_ == 0) {
    return std::nullopt;
  }
  const double wanted =
      static_cast<double>(k) * static_cast<double>(reached_) / static_cast<double>(count);
  const auto edge = [](std::size_t bin) {
    const auto begin = std::bit_cast<float>(static_cast<std::uint32_t>(bin << kShift));
    return std::min(static_cast<double>(begin), kMax);  // The last bin ends before infinity.
  };
  double above = 0.0;
  for (std::size_t bin = kBins; bin-- > 1;) {
    const double here = bins_[bin];
    if (here > 0.0 && above + here >= wanted) {
      const double width = edge(bin + 1) - edge(bin);
      return edge(bin) + width * (1.0 - (wanted - above) / here);
    }
    above += here;
  }
  return 0.0;
}

}  // namespace lightcc::detail
