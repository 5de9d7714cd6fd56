// Datagrams between the ranks of one host: they wake, and they carry descriptors.
//
// Each rank has one socket with an abstract name and sends to the names of others. So whoever can
// wake n ranks has one descriptor for it, and not n. Whoever looks for names can send as well. A
// stranger's datagram makes a rank look for work in vain; what does not begin with the host's token
// is dropped with all it carries.
//
// A queue holds about ten datagrams. A wake-up needs no room: a socket with a full queue is
// readable, and a rank sends one for each sleep that it ends (doorbell.hpp). Descriptors wait.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/unique_fd.hpp"
#include "lightcc/net/socket_address.hpp"

namespace lightcc {

/// Sends a wake-up from `socket` to the socket of that name. Best effort: a rank that is gone is
/// liveness's business. Thread: any. Blocks: never.
void send_wake_up(int socket, const SocketAddress& to);

/// Thread: one, unless said otherwise. Blocks: never.
class HostMail {
 public:
  /// Proves that descriptors come from a rank of this host.
  using Token = std::array<std::byte, 32>;
  /// A descriptor, and the number that came with it.
  using Parcel = std::pair<std::uint32_t, UniqueFd>;

  /// Without a socket: nobody sends, and nothing comes.
  HostMail() = default;
  /// Errors: kSystem.
  static Result<HostMail> open(const std::string& name);
  /// The socket of a rank that calls itself `name`.
  static SocketAddress address_of(const std::string& name);
  /// Whether there is such a socket in this network namespace. Errors: kSystem.
  static Result<bool> exists(const std::string& name);

  /// The ranks of this host, by what they call themselves, and what they know alone. Pointers to
  /// names of before are no longer valid.
  void meet(const std::vector<std::string>& names, const Token& token);

  /// Readable when something has come; -1 without a socket.
  int fd() const { return socket_.get(); }
  /// Where the rank at `position` has its mail. It stays there when the HostMail is moved.
  const SocketAddress& name_of(std::size_t position) const { return names_[position]; }

  /// Sends a descriptor to the rank at `position`. False: its queue is full. Errors: kPeerFailed
  /// when it is gone; kSystem.
  Result<bool> send(std::size_t position, std::uint32_t number, int fd) const;
  /// Takes in what has come. fd() stays readable where that is very much.
  void collect();
  /// The descriptors that were collected, which are forgotten then. Errors: kSystem, when this
  /// process may not open one.
  Result<std::vector<Parcel>> take();

 private:
  bool receive_one();

  UniqueFd socket_;
  std::vector<SocketAddress> names_;
  Token token_{};
  std::vector<Parcel> parcels_;
  Status trouble_;
};

}  // namespace lightcc
