// What harp-perf measures: messages one way between two machines, by any means.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "control.hpp"

namespace harp_perf {

/// One end of a way from one machine to the other. Nothing blocks. Throws std::runtime_error when
/// the way is broken.
class Link {
 public:
  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  virtual ~Link() = default;

  /// Begins to send, or to receive, a message; false: not now. `slot` names it.
  virtual bool post(std::span<std::byte> message, std::size_t slot) = 0;
  /// Whether the message of `slot` has been sent (its buffer is free), or received.
  virtual bool is_done(std::size_t slot) = 0;
};

struct Ends {
  std::unique_ptr<Link> out;
  std::unique_ptr<Link> in;
};

/// `via`: "tcp" for one connection, "tcp-each-way" for two, or the path of an NCCL net plugin,
/// perhaps behind words NAME=VALUE: the environment in which it starts. Both ends of a control
/// connection call it at once; `is_first` on one of them. `peer`: the other machine's address,
/// `here`: this one's.
Ends make_links(const std::string& via,
                bool is_first,
                const std::string& here,
                const std::string& peer,
                Control& control);

Ends make_tcp_links(bool is_first,
                    bool is_each_way,
                    const std::string& here,
                    const std::string& peer,
                    Control& control);
Ends make_plugin_links(const std::string& via, Control& control);

/// Most messages under way.
inline constexpr std::size_t kMaxSlots = 32;

}  // namespace harp_perf
