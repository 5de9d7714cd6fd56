// The steps in which what is kept back belongs to quantised elements.
#include <cstddef>
#include <optional>
#include <span>

#include "lightcc/compression/quantize.hpp"
#include "lightcc/compression/topk_state.hpp"
#include "lightcc/compression/topk_state_impl.hpp"

namespace lightcc {

Result<bool> TopkState::quantize(const std::byte* shard,
                                 std::span<const ShardRange> parts,
                                 std::optional<std::size_t> own,
                                 Compressor compressor,
                                 std::span<std::byte> out,
                                 SimdLevel level) {
  if (is_pending()) {
    return make_error(ErrorCode::kInternal,
                      "quantising while a step is neither committed nor rolled back");
  }
  impl_->job(1.0, 0.0, level);  // A step without momentum.
  impl_->next_forecast = {};    // Of the next top-k step, if there is one.
  const QuantizedFormat format{.dtype = impl_->dtype, .compressor = compressor};
  bool finite = true;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t elements = parts[i].size_elems();
    const std::size_t lanes = parts[i].begin * impl_->lane_bytes();
    const std::byte* in =
        shard == nullptr ? nullptr : shard + parts[i].begin * element_size(impl_->dtype);
    const std::byte* kept = impl_->residual.current() + lanes;
    std::byte* left = impl_->residual.next() + lanes;
    if (i == own) {
      accumulate(in, kept, left, elements, impl_->dtype);
      continue;
    }
    const std::size_t bytes = quantized_bytes(elements, format.bits());
    finite = lightcc::quantize(in, kept, left, elements, format, out.first(bytes), level) && finite;
    out = out.subspan(bytes);
  }
  impl_->pending = finite ? Impl::Pending::kFinite : Impl::Pending::kNonFinite;
  impl_->measure(shard, own ? parts[*own] : ShardRange());
  return finite;
}

Result<bool> TopkState::quantize_sum(std::span<const std::span<const std::byte>> parts,
                                     const ShardRange& range,
                                     Compressor compressor,
                                     std::span<std::byte> out,
                                     SimdLevel level) {
  if (!is_pending()) {
    return make_error(ErrorCode::kInternal, "quantising a sum without a step");
  }
  const bool finite =
      lightcc::quantize_sum(parts,
                            range.size_elems(),
                            {.dtype = impl_->dtype, .compressor = compressor},
                            impl_->residual.next() + range.begin * impl_->lane_bytes(),
                            out,
                            level);
  if (!finite) {
    impl_->pending = Impl::Pending::kNonFinite;
  }
  return finite;
}

}  // namespace lightcc
