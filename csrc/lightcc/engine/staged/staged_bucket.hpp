// A bucket of another kind of memory, all of it at once: its tensors are copied to the host, run on
// the host's plane, and the results are copied back.
#pragma once

#include <memory>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/engine/bucket.hpp"

namespace lightcc {

/// Plane::start() of such a bucket, by the copies that `site.devices` makes. Errors that `host` has
/// come later.
Result<std::unique_ptr<Work>> start_whole(Plane& host,
                                          Bucket& bucket,
                                          const Route& route,
                                          const BucketSite& site);

}  // namespace lightcc
