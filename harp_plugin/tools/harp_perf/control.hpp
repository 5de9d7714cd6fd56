// The connection over which the two programs agree: lines of text over TCP.
#pragma once

#include <string>

#include "datapath/unique_fd.hpp"

namespace harp_perf {

class Control {
 public:
  /// Connects to HOST:PORT, or waits for one connection there. Throws std::runtime_error.
  static Control connect(const std::string& host_and_port);
  static Control accept(const std::string& host_and_port);

  void say(const std::string& text);
  /// Blocks. Throws when the other end has gone.
  std::string hear();

  const std::string& here() const { return here_; }
  const std::string& peer() const { return peer_; }

 private:
  explicit Control(harp::UniqueFd fd);

  harp::UniqueFd fd_;
  std::string here_;  ///< This end's address, without the port.
  std::string peer_;
  std::string unread_;
};

}  // namespace harp_perf
