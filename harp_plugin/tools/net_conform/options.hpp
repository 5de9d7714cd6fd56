// What the command line says.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace net_conform {

struct Options {
  std::string plugin;
  int version = 12;
  int device = 0;
  std::vector<std::string> tests;        ///< Prefixes of names of cases; empty: all.
  std::vector<std::size_t> sizes_bytes;  ///< Sizes of messages for data.sizes.
  double soak_s = 0.2;
  double limit_s = 60;       ///< A case may take so long.
  double peer_limit_s = 45;  ///< Within which a dead peer is an error.
  bool is_strict = false;    ///< Also what NCCL does not need, but a careful plugin keeps.
  std::size_t handle_limit_bytes = 0;  ///< 0: NCCL's.
  bool has_peer_process = false;
  std::string peer_prefix;  ///< Words before the peer's command, as "ip netns exec b".
  bool is_peer = false;
  bool only_list = false;
};

/// Prints what is wrong and returns false for a command line that makes no sense.
bool parse_options(const std::vector<std::string>& arguments, Options* options);

/// The command line of the peer of a run with `options`.
std::vector<std::string> peer_command(const Options& options);

}  // namespace net_conform
