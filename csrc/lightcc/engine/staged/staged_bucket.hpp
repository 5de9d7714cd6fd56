// A bucket of another kind of memory: its tensors are copied to the host, run on the host's plane,
// and the results are copied back. Large all-reduces, broadcasts and all-gathers do so piece
// by piece (staged_pieces.hpp). What is compressed on its device is not copied
// (compressed_bucket.hpp), and all else is at once.
#pragma once

#include <memory>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/engine/bucket.hpp"
#include "lightcc/engine/route.hpp"

namespace lightcc {

/// Starts a bucket whose tensors `site.devices` copies to the host and back; all else of `site` is
/// the host's. All of that and the bucket outlive the Work. Bits, names and what compression keeps
/// back are those of the same bucket in host memory. Errors: of start_bucket(), but for those that
/// come later.
Result<std::unique_ptr<Work>> start_staged_bucket(Bucket& bucket,
                                                  const Route& route,
                                                  const BucketSite& site);

}  // namespace lightcc
