// A bucket of another kind of memory: its tensors are copied to the host, run on the host's plane,
// and the results are copied back. Large all-reduces, broadcasts and all-gathers do so piece
// by piece (staged_pieces.hpp). What is compressed on its device is not copied
// (compressed_bucket.hpp), and all else is at once.
#pragma once

#include <cstddef>
#include <memory>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/engine/bucket.hpp"
#include "lightcc/engine/staging.hpp"

namespace lightcc {

/// Bits, names and what compression keeps back are those of the same bucket in host memory.
class StagedWork : public Work {
 public:
  /// Whether it waits for a copy, of which nobody tells.
  virtual bool is_copying() const = 0;
};

/// Starts a bucket. It and `staging` outlive the Work, as does what `host`, the host's site, refers
/// to. `piece_bytes`: most bytes of a piece, the same on all ranks; 0: there are none. Errors: of
/// start_bucket(), but for those that come later.
Result<std::unique_ptr<StagedWork>> start_staged_bucket(Bucket& bucket,
                                                        const BucketSite& host,
                                                        Staging& staging,
                                                        std::size_t piece_bytes);

}  // namespace lightcc
