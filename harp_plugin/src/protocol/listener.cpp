#include "protocol/listener.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/auth.hpp"
#include "protocol/handshake.hpp"
#include "protocol/packet.hpp"
#include "protocol/types.hpp"

namespace harp {

Listener::Listener(std::uint64_t listen_id, const Secret& secret, std::size_t max_sessions)
    : listen_id_(listen_id), key_(syn_key(secret)), max_sessions_(max_sessions) {}

Listener::Answer Listener::on_packet(std::span<const std::byte> packet) const {
  const auto view = parse_packet(packet);
  if (!view || view->header.type != PacketType::kSyn || !is_authentic(key_, *view)) {
    return {};
  }
  const auto syn = parse_syn(view->body);
  if (!syn || syn->listen_id != listen_id_) {
    return {};
  }
  Answer answer{.syn = *syn, .tx_time = view->header.tx_time};
  const auto known = std::ranges::find(known_, syn->nonce, &Known::nonce);
  if (known != known_.end()) {
    answer.verdict = Verdict::kKnown;
    answer.cid = known->cid;
  } else if (known_.size() < max_sessions_) {
    answer.verdict = Verdict::kNew;
  }
  return answer;
}

void Listener::add(const Nonce& nonce, Cid cid) {
  known_.push_back({.nonce = nonce, .cid = cid});
}

void Listener::remove(Cid cid) {
  std::erase_if(known_, [cid](const Known& entry) { return entry.cid == cid; });
}

}  // namespace harp
