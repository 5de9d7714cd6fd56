// Steps whose residual belongs to quantised elements.
#include <cstddef>
#include <optional>
#include <span>

#include "lightcc/compression/quantized/quantize.hpp"
#include "lightcc/compression/residual/host_residual.hpp"

namespace lightcc {

Result<bool> HostResidual::quantize(const std::byte* shard,
                                    std::span<const ShardRange> parts,
                                    std::optional<std::size_t> own,
                                    Compressor compressor,
                                    std::span<std::byte> out,
                                    SimdLevel level) {
  if (is_pending()) {
    return make_error(ErrorCode::kInternal,
                      "quantising while a step is neither committed nor rolled back");
  }
  begin(0.0, level);    // A step without momentum.
  next_forecast_ = {};  // The next top-k step finds its own.
  const QuantizedFormat format{.dtype = dtype_, .compressor = compressor};
  bool finite = true;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t elements = parts[i].size_elems();
    const std::size_t lanes = parts[i].begin * lane_bytes();
    const std::byte* in =
        shard == nullptr ? nullptr : shard + parts[i].begin * element_size(dtype_);
    const std::byte* kept = residual_.current() + lanes;
    std::byte* left = residual_.next() + lanes;
    if (i == own) {
      accumulate(in, kept, left, elements, dtype_);
      continue;
    }
    const std::size_t bytes = quantized_bytes(elements, format.bits());
    finite = lightcc::quantize(in, kept, left, elements, format, out.first(bytes), level) && finite;
    out = out.subspan(bytes);
  }
  pending_ = finite ? Pending::kFinite : Pending::kNonFinite;
  measure(shard, own ? parts[*own] : ShardRange());
  return finite;
}

Result<bool> HostResidual::quantize_sum(std::span<const std::span<const std::byte>> parts,
                                        const ShardRange& range,
                                        Compressor compressor,
                                        std::span<std::byte> out,
                                        SimdLevel level) {
  if (!is_pending()) {
    return make_error(ErrorCode::kInternal, "quantising a sum without a step");
  }
  const bool finite = lightcc::quantize_sum(parts,
                                            range.size_elems(),
                                            {.dtype = dtype_, .compressor = compressor},
                                            residual_.next() + range.begin * lane_bytes(),
                                            out,
                                            level);
  if (!finite) {
    pending_ = Pending::kNonFinite;
  }
  return finite;
}

}  // namespace lightcc
