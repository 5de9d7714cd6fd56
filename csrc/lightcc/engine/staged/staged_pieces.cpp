// The pieces follow from the sizes of the agreed tensors alone, so they are the same on all ranks,
// which reduce them one after another:
//
//   to the host   P0 P1 P2 P3 . . . . P4 . . . . P5
//   reduced              P0  P0  P1  P1  P2 ...
//   back                         P0      P1 ...
//
// A piece begins to come when there is room for it, and has its host memory until it is back.
// Copies of each direction keep their order, and wait for nothing but their piece, so that the
// first piece that is not done can always go on.
//
// Numbers. The elements of a piece are combined as those of the whole bucket would be: by the group
// that runs so many bytes, in the order of its members (group.hpp). A piece is one span, whatever
// tensors it touches, as elements do not know their tensor.
//
// A broadcast goes the same way, with the root's data in the place of sums. So does an all-gather:
// a piece has the same share of what each member brings, and only the own one comes to the host.
//
// Memory. Only parts of a piece that has been reduced are written. They were read before, so a
// result may go where its input was.
#include "lightcc/engine/staged/staged_pieces.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <numeric>
#include <utility>

namespace lightcc {
namespace {

/// Where slices begin: copies of the GPU like that.
constexpr std::size_t kSliceAlignment = 64;

/// Starts the collective of a piece that has come to the host.
using StartPiece = std::function<std::unique_ptr<Work>(const StagedBlock& block)>;

class PiecedWork final : public Work {
 public:
  PiecedWork(std::unique_ptr<PieceSource> source,
             bool needs_host,
             StartPiece start,
             Staging& staging)
      : source_(std::move(source)),
        needs_host_(needs_host),
        start_(std::move(start)),
        staging_(staging) {}

  Result<Progress> advance() override {
    bool moved = fetch();
    LIGHTCC_ASSIGN_OR_RETURN(const bool reduced, reduce());
    LIGHTCC_ASSIGN_OR_RETURN(const bool retired, retire());
    moved = moved || reduced || retired;
    if (pieces_.empty() && source_->at_end()) {
      return Progress::kDone;
    }
    return moved ? Progress::kMoved : Progress::kIdle;
  }

 private:
  struct Piece {
    std::shared_ptr<StagedBlock> block;
    std::unique_ptr<Work> copying;  // To the host until it is reduced, then back.
  };

  // True when something moved, as are the next two.
  bool fetch() {
    bool moved = false;
    while (pieces_.size() < kPiecesAtATime && !source_->at_end()) {
      auto block = std::make_shared<StagedBlock>(source_->next());
      block->needs_host = needs_host_ && block->bytes > 0;
      std::unique_ptr<Work> copying = staging_.copy_to_host(block);
      pieces_.push_back({std::move(block), std::move(copying)});
      moved = true;
    }
    return moved;
  }

  Result<bool> reduce() {
    if (reduced_ == pieces_.size()) {
      return false;
    }
    Piece& piece = pieces_[reduced_];
    if (collective_ == nullptr) {
      LIGHTCC_ASSIGN_OR_RETURN(const Progress arrived, piece.copying->advance());
      if (arrived != Progress::kDone) {
        return false;
      }
      collective_ = start_(*piece.block);
    }
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, collective_->advance());
    if (progress == Progress::kDone) {
      collective_.reset();
      piece.copying = staging_.copy_to_device(piece.block);
      ++reduced_;
    }
    return progress != Progress::kIdle;
  }

  Result<bool> retire() {
    bool moved = false;
    while (reduced_ > 0) {
      LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, pieces_.front().copying->advance());
      if (progress != Progress::kDone) {
        break;
      }
      pieces_.pop_front();
      --reduced_;
      moved = true;
    }
    return moved;
  }

  const std::unique_ptr<PieceSource> source_;
  const bool needs_host_;
  const StartPiece start_;
  Staging& staging_;
  std::deque<Piece> pieces_;
  std::size_t reduced_ = 0;           // The first so many pieces.
  std::unique_ptr<Work> collective_;  // It works on the piece behind them.
};

std::unique_ptr<Work> start_sum(Group& group,
                                const StagedBlock& block,
                                const Reduction& reduction) {
  std::byte* const data = block.host.get();  // Null: this rank has joined.
  if (data != nullptr) {
    for (const StagedPart& part : block.parts) {
      if (part.from == nullptr) {  // It has joined after it submitted others.
        std::memset(block.at(part), 0, part.bytes);
      }
    }
  }
  return group.allreduce({{data, data, block.bytes / element_size(reduction.dtype)}}, reduction);
}

Result<std::unique_ptr<Work>> allreduce_in_pieces(Bucket& bucket,
                                                  const BucketSite& site,
                                                  std::size_t piece_bytes) {
  const Reduction reduction = reduction_of(bucket.tensors.front().signature(), site.members.size());
  const std::size_t element_bytes = element_size(reduction.dtype);
  std::vector<StagedPart> tensors;
  tensors.reserve(bucket.tensors.size());
  for (BucketTensor& tensor : bucket.tensors) {
    const std::vector<std::int64_t>& shape = tensor.signature().shape;
    StagedPart& part = tensors.emplace_back();
    part.bytes = static_cast<std::size_t>(element_count(shape)) * element_bytes;
    if (tensor.operation != nullptr) {
      const TensorRef& input = tensor.operation->operation.input;
      part.from = static_cast<const std::byte*>(input.data);
      part.device = input.memory.device;
      LIGHTCC_ASSIGN_OR_RETURN(part.to, output_for(tensor, shape, [&](std::size_t bytes) {
                                 return site.devices->allocate(bytes, input.memory.device);
                               }));
    }
  }
  Group& group = site.group().group_for(static_cast<std::size_t>(byte_count(bucket)));
  return std::unique_ptr<Work>(std::make_unique<PiecedWork>(
      std::make_unique<PieceCutter>(std::move(tensors), element_bytes, piece_bytes),
      false,
      [&group, reduction](const StagedBlock& block) { return start_sum(group, block, reduction); },
      *site.devices));
}

Result<std::unique_ptr<Work>> broadcast_in_pieces(Bucket& bucket,
                                                  const BucketSite& site,
                                                  std::size_t piece_bytes) {
  BucketTensor& tensor = bucket.tensors.front();
  const Signature& signature = tensor.signature();
  const auto bytes = static_cast<std::size_t>(byte_count(bucket));
  const auto root = static_cast<int>(std::ranges::find(site.members, signature.root_or_peer) -
                                     site.members.begin());
  const TensorRef& input = tensor.operation->operation.input;  // Nobody joins a broadcast.
  LIGHTCC_ASSIGN_OR_RETURN(std::byte* const out,
                           output_for(tensor, signature.shape, [&](std::size_t size) {
                             return site.devices->allocate(size, input.memory.device);
                           }));
  StagedPart part{.device = input.memory.device, .bytes = bytes};
  Group& group = site.group().group_for(bytes);
  if (group.rank() == root) {
    part.from = static_cast<const std::byte*>(input.data);
    part.to = out == input.data ? nullptr : out;
  } else {
    part.to = out;
  }
  return std::unique_ptr<Work>(std::make_unique<PiecedWork>(
      std::make_unique<PieceCutter>(
          std::vector<StagedPart>{part}, element_size(signature.dtype), piece_bytes),
      true,
      [&group, root](const StagedBlock& block) {
        return group.broadcast(block.host.get(), block.bytes, root);
      },
      *site.devices));
}

Result<std::unique_ptr<Work>> allgather_in_pieces(Bucket& bucket,
                                                  const BucketSite& site,
                                                  std::size_t piece_bytes) {
  BucketTensor& tensor = bucket.tensors.front();
  const TensorRef& input = tensor.operation->operation.input;  // Nobody joins an all-gather.
  std::vector<std::size_t> members = gathered_bytes(tensor);
  LIGHTCC_ASSIGN_OR_RETURN(std::byte* const out,
                           output_for(tensor, gathered_shape(tensor), [&](std::size_t size) {
                             return site.devices->allocate(size, input.memory.device);
                           }));
  const std::size_t all = std::accumulate(members.begin(), members.end(), std::size_t{0});
  Group& group = site.group().group_for(all);
  const auto own = static_cast<std::size_t>(group.rank());
  const StagedPart whole{.from = static_cast<const std::byte*>(input.data),
                         .to = out,
                         .device = input.memory.device,
                         .bytes = all};
  return std::unique_ptr<Work>(std::make_unique<PiecedWork>(
      std::make_unique<SliceCutter>(std::move(members), own, whole, piece_bytes),
      true,
      [&group, own](const StagedBlock& block) {
        std::vector<std::size_t> bytes;
        bytes.reserve(block.parts.size());
        for (const StagedPart& part : block.parts) {
          bytes.push_back(part.bytes);
        }
        return group.allgather(block.at(block.parts[own]), block.host.get(), std::move(bytes));
      },
      *site.devices));
}

}  // namespace

PieceCutter::PieceCutter(std::vector<StagedPart> tensors,
                         std::size_t element_bytes,
                         std::size_t piece_bytes)
    : tensors_(std::move(tensors)) {
  for (const StagedPart& tensor : tensors_) {
    left_ += tensor.bytes;
  }
  const std::size_t elements = left_ / element_bytes;
  const std::size_t fit = std::max<std::size_t>(piece_bytes / element_bytes, 1);
  const std::size_t pieces = std::max<std::size_t>((elements + fit - 1) / fit, 1);
  block_bytes_ = (elements + pieces - 1) / pieces * element_bytes;
}

StagedBlock PieceCutter::next() {
  StagedBlock block;
  const std::size_t bytes = std::min(block_bytes_, left_);
  while (block.bytes < bytes) {
    const StagedPart& tensor = tensors_[next_];
    StagedPart part = tensor;
    part.bytes = std::min(tensor.bytes - skip_, bytes - block.bytes);
    part.from = tensor.from == nullptr ? nullptr : tensor.from + skip_;
    part.to = tensor.to == nullptr ? nullptr : tensor.to + skip_;
    part.offset = block.bytes;
    block.bytes += part.bytes;
    skip_ += part.bytes;
    if (part.bytes > 0) {
      block.parts.push_back(part);
    }
    if (skip_ == tensor.bytes) {
      ++next_;
      skip_ = 0;
    }
  }
  left_ -= bytes;
  return block;
}

SliceCutter::SliceCutter(std::vector<std::size_t> members,
                         std::size_t own,
                         StagedPart whole,
                         std::size_t piece_bytes)
    : members_(std::move(members)), own_(own), whole_(whole) {
  const std::size_t all = std::accumulate(members_.begin(), members_.end(), std::size_t{0});
  const std::size_t rounding = kSliceAlignment * members_.size();
  const std::size_t room = std::max<std::size_t>(
      piece_bytes > rounding ? std::max(piece_bytes - rounding, piece_bytes / 2) : piece_bytes, 1);
  pieces_ = std::max<std::size_t>(all / room + (all % room == 0 ? 0 : 1), 1);
}

// Where a piece begins in what a member brings.
std::size_t SliceCutter::begin_of(std::size_t bytes, std::size_t piece) const {
  const std::size_t share = bytes / pieces_ * piece + std::min(bytes % pieces_, piece);
  return piece == pieces_ ? bytes : share / kSliceAlignment * kSliceAlignment;
}

StagedBlock SliceCutter::next() {
  StagedBlock block;
  std::size_t first = 0;  // Where a member's bytes begin in the result.
  for (std::size_t member = 0; member < members_.size(); ++member) {
    const std::size_t begin = begin_of(members_[member], next_);
    StagedPart& part = block.parts.emplace_back();
    part.device = whole_.device;
    part.bytes = begin_of(members_[member], next_ + 1) - begin;
    part.offset = block.bytes;
    part.to = whole_.to + first + begin;
    if (member == own_) {
      part.from = whole_.from + begin;
      part.to = part.to == part.from ? nullptr : part.to;
    }
    block.bytes += part.bytes;
    first += members_[member];
  }
  ++next_;
  return block;
}

Result<std::unique_ptr<Work>> start_in_pieces(Bucket& bucket,
                                              const BucketSite& site,
                                              std::size_t piece_bytes) {
  switch (bucket.tensors.front().signature().op) {
    case OpType::kBroadcast:
      return broadcast_in_pieces(bucket, site, piece_bytes);
    case OpType::kAllgather:
      return allgather_in_pieces(bucket, site, piece_bytes);
    default:
      return allreduce_in_pieces(bucket, site, piece_bytes);
  }
}

}  // namespace lightcc
