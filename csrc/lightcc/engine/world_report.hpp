// What a user wants to know of a world when it stands, as NCCL_DEBUG=INFO tells it: version, ranks
// and hosts, the interface and why it was chosen, the transport, the algorithm, and every variable
// that is not at its default. It is logged once, at level info. Later there is a line on ranks that
// become slow.
#pragma once

#include <string>
#include <vector>

#include "lightcc/control/slow_ranks.hpp"
#include "lightcc/engine/membership.hpp"
#include "lightcc/engine/world.hpp"

namespace lightcc {

/// One text for each line. Rank 0 tells of the whole world, each rank of itself.
std::vector<std::string> describe_world(const Membership& world, const WorldOptions& options);

/// What is to be said once, when a rank has become slow, and when it is not slow any more.
std::string describe_slow(const Membership& world, const SlowChange& change);

}  // namespace lightcc
