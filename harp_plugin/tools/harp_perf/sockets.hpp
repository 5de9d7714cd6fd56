// TCP over IPv4, as much of it as harp-perf needs. All of it throws std::runtime_error or
// std::system_error, saying what could not be done.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>

#include "datapath/unique_fd.hpp"

namespace harp_perf {

[[noreturn]] void fail(const std::string& what);

sockaddr_in address_of(const std::string& host, std::uint16_t port);
/// Port 0: any; local_port() says which.
harp::UniqueFd listen_at(const sockaddr_in& address);
std::uint16_t local_port(const harp::UniqueFd& fd);
/// Blocks. The socket sends without delay, as that of connect_to().
harp::UniqueFd accept_one(const harp::UniqueFd& listener);
harp::UniqueFd connect_to(const sockaddr_in& peer);

}  // namespace harp_perf
