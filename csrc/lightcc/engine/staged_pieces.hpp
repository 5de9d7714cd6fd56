// An all-reduce or broadcast of another kind of memory, in pieces: while one is on the host's
// plane, later ones come to the host and earlier ones go back. (Essay: staged_pieces.cpp.)
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/engine/bucket.hpp"
#include "lightcc/engine/staged_bucket.hpp"
#include "lightcc/engine/staging.hpp"

namespace lightcc {

/// Pieces of a bucket that are in host memory at a time, at most.
inline constexpr std::size_t kPiecesAtATime = 4;

/// Cuts tensors, one after another, into blocks, regardless of where a tensor ends.
class PieceCutter {
 public:
  /// As few blocks of at most `piece_bytes` as possible (but at least an element), all alike but
  /// for the last, which may be smaller. `tensors`: their offsets do not matter.
  PieceCutter(std::vector<StagedPart> tensors, std::size_t element_bytes, std::size_t piece_bytes);

  bool at_end() const { return left_ == 0; }
  /// Parts of the next block, without gaps. Not at the end.
  StagedBlock next();

 private:
  std::vector<StagedPart> tensors_;
  std::size_t block_bytes_ = 0;
  std::size_t left_ = 0;  // Bytes,
  std::size_t next_ = 0;  // of which the first is this tensor's,
  std::size_t skip_ = 0;  // so far into it.
};

/// `reduction`: elementwise_reduction() of the bucket. Otherwise as start_staged_bucket(). Errors:
/// of output_for().
Result<std::unique_ptr<StagedWork>> start_in_pieces(Bucket& bucket,
                                                    const Reduction& reduction,
                                                    const BucketSite& host,
                                                    Staging& staging,
                                                    std::size_t piece_bytes);

/// The same for a broadcast. Only its root copies to the host.
Result<std::unique_ptr<StagedWork>> start_broadcast_in_pieces(Bucket& bucket,
                                                              const BucketSite& host,
                                                              Staging& staging,
                                                              std::size_t piece_bytes);

}  // namespace lightcc
