#include "lightcc/compression/exchange/compressed_gather.hpp"

#include <algorithm>
#include <numeric>

#include "lightcc/collectives/sequence.hpp"
#include "lightcc/compression/exchange/compressed_item.hpp"
#include "lightcc/compression/exchange/row_codes.hpp"

namespace lightcc {
namespace {

class CompressedGather {
 public:
  CompressedGather(Group& group,
                   const std::byte* in,
                   std::byte* out,
                   const std::vector<std::size_t>& elements,
                   const CompressedGatherJob& job)
      : group_(group), in_(in), out_(out), job_(job) {
    for (const std::size_t count : elements) {
      rows_.push_back(cut_row(count, job.spec));
      bytes_.push_back(pieces_bytes(rows_.back(), job.dtype));
      elements_.push_back(count);
    }
    codes_ = make_compressed_buffer(std::accumulate(bytes_.begin(), bytes_.end(), std::size_t{0}));
  }

  Result<std::unique_ptr<Work>> start() {
    const auto me = static_cast<std::size_t>(group_.rank());
    const auto before = bytes_.begin() + static_cast<std::ptrdiff_t>(me);
    std::byte* const own = codes_.get() + std::accumulate(bytes_.begin(), before, std::size_t{0});
    encode(rows_[me], {own, bytes_[me]});
    CompressionCounters& counters = *job_.counters;
    counters.tensors += 1;
    counters.passes += 1;
    counters.dense_bytes += (job_.blocks - 1) * elements_[me] * element_size(job_.dtype);
    counters.sent_bytes += (job_.blocks - 1) * bytes_[me];
    return group_.allgather(own, codes_.get(), bytes_);
  }

  Status decode() const {
    const std::byte* codes = codes_.get();
    std::byte* out = out_;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool finite,
                               check_pieces(rows_[i], job_.dtype, {codes, bytes_[i]}));
      if (out != nullptr) {
        if (finite) {
          decode(rows_[i], codes, out);
        } else {
          fill_with_nan(out, elements_[i], job_.dtype);
        }
        out += elements_[i] * element_size(job_.dtype);
      }
      codes += bytes_[i];
    }
    return {};
  }

 private:
  void encode(const std::vector<RowPiece>& pieces, std::span<std::byte> out) const {
    std::span<std::byte> to = out;
    bool finite = true;
    for (const RowPiece& piece : pieces) {
      const std::size_t bytes = piece_bytes(piece, job_.dtype);
      const std::byte* const from = in_ + piece.range.begin * element_size(job_.dtype);
      finite = encode_piece(from, piece, job_.dtype, nullptr, {}, to.first(bytes)) && finite;
      to = to.subspan(bytes);
    }
    if (!finite) {
      write_non_finite_pieces(pieces, job_.dtype, out);
    }
  }

  void decode(const std::vector<RowPiece>& pieces, const std::byte* codes, std::byte* out) const {
    for (const RowPiece& piece : pieces) {
      const std::span<const std::byte> part(codes, piece_bytes(piece, job_.dtype));
      std::byte* const to = out + piece.range.begin * element_size(job_.dtype);
      if (piece.bits == 0) {
        std::ranges::copy(part, to);
      } else {
        dequantize(
            {&part, 1}, piece.elements(), piece.format(job_.dtype), 1.0, to, detect_simd_level());
      }
      codes += part.size();
    }
  }

  Group& group_;
  const std::byte* in_;
  std::byte* out_;
  CompressedGatherJob job_;
  std::vector<std::vector<RowPiece>> rows_;
  std::vector<std::size_t> elements_;
  std::vector<std::size_t> bytes_;  // The codes of each row take so many.
  CompressedBuffer codes_;          // All rows', one after another.
};

}  // namespace

std::unique_ptr<Work> make_compressed_allgather(Group& group,
                                                const std::byte* in,
                                                std::byte* out,
                                                const std::vector<std::size_t>& elements,
                                                const CompressedGatherJob& job) {
  const auto gather = std::make_shared<CompressedGather>(group, in, out, elements, job);
  return std::make_unique<Sequence>(
      std::vector<Sequence::Start>{[gather] { return gather->start(); },
                                   [gather]() -> Result<std::unique_ptr<Work>> {
                                     LIGHTCC_RETURN_IF_ERROR(gather->decode());
                                     return std::unique_ptr<Work>();
                                   }});
}

}  // namespace lightcc
