// An all-reduce, broadcast or all-gather of another kind of memory, in pieces: while one is on the
// host's plane, later ones come to the host and earlier ones go back. (Essay: staged_pieces.cpp.)
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/engine/bucket.hpp"
#include "lightcc/engine/staged/staging.hpp"

namespace lightcc {

/// Pieces of a bucket that are in host memory at a time, at most.
inline constexpr std::size_t kPiecesAtATime = 4;

/// Says what the pieces of a bucket are, one after another.
class PieceSource {
 public:
  PieceSource() = default;
  PieceSource(const PieceSource&) = default;
  PieceSource(PieceSource&&) = default;
  PieceSource& operator=(const PieceSource&) = delete;
  PieceSource& operator=(PieceSource&&) = delete;
  virtual ~PieceSource() = default;
  virtual bool at_end() const = 0;
  /// Parts of the next piece, without gaps. Not at the end.
  virtual StagedBlock next() = 0;
};

/// Cuts tensors, one after another, into blocks, regardless of where a tensor ends.
class PieceCutter final : public PieceSource {
 public:
  /// As few blocks of at most `piece_bytes` as possible (but at least an element), all alike but
  /// for the last, which may be smaller. `tensors`: their offsets do not matter.
  PieceCutter(std::vector<StagedPart> tensors, std::size_t element_bytes, std::size_t piece_bytes);

  bool at_end() const override { return left_ == 0; }
  StagedBlock next() override;

 private:
  std::vector<StagedPart> tensors_;
  std::size_t block_bytes_ = 0;
  std::size_t left_ = 0;  // Bytes,
  std::size_t next_ = 0;  // of which the first is this tensor's,
  std::size_t skip_ = 0;  // so far into it.
};

/// Cuts the result of an all-gather: each piece has a slice of each member's bytes, in their order.
class SliceCutter final : public PieceSource {
 public:
  /// `members`: how many bytes each one brings, of which this rank is the `own`-th. `whole`: its
  /// input, and where all of them go. Pieces are about alike, and of at most `piece_bytes` bytes,
  /// if that is no less than 128 for each member.
  SliceCutter(std::vector<std::size_t> members,
              std::size_t own,
              StagedPart whole,
              std::size_t piece_bytes);

  bool at_end() const override { return next_ == pieces_; }
  /// A part for each member, which may be empty.
  StagedBlock next() override;

 private:
  std::size_t begin_of(std::size_t bytes, std::size_t piece) const;

  const std::vector<std::size_t> members_;
  const std::size_t own_;
  const StagedPart whole_;
  std::size_t pieces_ = 0;
  std::size_t next_ = 0;
};

/// Starts an all-reduce whose elements are combined each on its own, a broadcast or an all-gather.
/// In a broadcast only the root copies to the host. An all-gather may have any sizes. Otherwise as
/// Plane::start(). Errors: of output_for().
Result<std::unique_ptr<Work>> start_in_pieces(Bucket& bucket,
                                              const BucketSite& site,
                                              std::size_t piece_bytes);

}  // namespace lightcc
