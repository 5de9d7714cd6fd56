#include "datapath/address.hpp"

#include <arpa/inet.h>

#include <array>
#include <string>

namespace harp {

std::string to_string(const Address& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool is_v4 = address.family == 4;
  (void)::inet_ntop(is_v4 ? AF_INET : AF_INET6, address.ip.data(), text.data(), text.size());
  const std::string ip = text.data();
  return (is_v4 ? ip : "[" + ip + "]") + ":" + std::to_string(address.port);
}

}  // namespace harp
