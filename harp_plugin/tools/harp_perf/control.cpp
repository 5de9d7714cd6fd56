#include "control.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "sockets.hpp"

namespace harp_perf {
namespace {

using harp::UniqueFd;

constexpr int kTries = 100;
constexpr auto kBetweenTries = std::chrono::milliseconds(50);

sockaddr_in parse(const std::string& host_and_port) {
  const std::size_t colon = host_and_port.rfind(':');
  std::uint16_t port = 0;
  const char* const end = host_and_port.data() + host_and_port.size();
  if (colon == std::string::npos ||
      std::from_chars(host_and_port.data() + colon + 1, end, port).ptr != end || port == 0) {
    throw std::runtime_error("'" + host_and_port + "': expected IPV4:PORT, such as 192.0.2.1:7000");
  }
  return address_of(host_and_port.substr(0, colon), port);
}

template <typename GetName>
std::string address_by(const GetName& get_name, int fd) {
  sockaddr_in address{};
  socklen_t bytes = sizeof(address);
  std::array<char, INET_ADDRSTRLEN> text{};
  if (get_name(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    fail("the control connection");
  }
  return ::inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
}

}  // namespace

Control::Control(UniqueFd fd)
    : fd_(std::move(fd)),
      here_(address_by(::getsockname, fd_.get())),
      peer_(address_by(::getpeername, fd_.get())) {}

Control Control::connect(const std::string& host_and_port) {
  const sockaddr_in peer = parse(host_and_port);
  for (int tries = 1;; ++tries) {  // The other program may need a moment.
    try {
      return Control(connect_to(peer));
    } catch (const std::system_error& error) {
      if (tries == kTries) {
        throw std::system_error(error.code(), "cannot connect to " + host_and_port);
      }
      std::this_thread::sleep_for(kBetweenTries);
    }
  }
}

Control Control::accept(const std::string& host_and_port) {
  const sockaddr_in address = parse(host_and_port);
  try {
    return Control(accept_one(listen_at(address)));
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(), "cannot be reached at " + host_and_port);
  }
}

void Control::say(const std::string& text) {
  const std::string line = text + "\n";
  std::size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t count = ::send(fd_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) {
      fail("the other harp-perf");
    }
    sent += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
}

std::string Control::hear() {
  std::size_t end = 0;
  while ((end = unread_.find('\n')) == std::string::npos) {
    std::array<char, 512> more{};
    const ssize_t count = ::recv(fd_.get(), more.data(), more.size(), 0);
    if (count == 0) {
      throw std::runtime_error("the other harp-perf has gone; its own message says why");
    }
    if (count < 0 && errno != EINTR) {
      fail("the other harp-perf");
    }
    unread_.append(more.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  }
  std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 1);
  return line;
}

}  // namespace harp_perf
