// What a receiver reads ahead reaches the message that it is of.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/rng.hpp"

#include "transport/tcp_raw_peer.hpp"
#include "transport/tcp_test_support.hpp"

namespace lightcc::tcp_receiver_test {
namespace {

using namespace tcp_test;  // NOLINT: the tests' own helpers

TEST(TcpReceiverTest, stripes_arrive_by_any_socket_in_parts_of_any_size) {
  constexpr std::array<std::size_t, 6> kSizes{0, 1, 64, 100, 1000, 5000};
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    Pair pair;
    ChannelHello hello = make_hello(pair.id);
    hello.count = 2;
    RawPeer first(*pair.b, encode_tcp_hello(hello));
    hello.index = 1;
    RawPeer second(*pair.b, encode_tcp_hello(hello));
    pair.recv = must(pair.b->accept(pair.id));
    std::array<Bytes, 2> streams;
    std::vector<Bytes> messages;
    for (std::uint64_t i = 0; i < 12; ++i) {
      messages.push_back(pattern(kSizes[rng.below(kSizes.size())], i));
      const std::size_t bytes = messages.back().size();
      StripeHeaderBytes header;
      encode_stripe_header({i, 0, bytes, static_cast<std::uint32_t>(bytes)}, header);
      Bytes& stream = streams[rng.below(2)];
      stream.insert(stream.end(), header.begin(), header.end());
      stream.insert(stream.end(), messages.back().begin(), messages.back().end());
    }
    std::vector<Bytes> into;
    into.reserve(messages.size());  // Receives write there.
    std::vector<bool> is_lent;
    const auto take = [&] {
      for (RequestId i = 0; i < into.size(); ++i) {
        while (is_lent[i]) {
          const auto piece = must(pair.recv->next_fragment(i));
          if (!piece.has_value()) {
            break;
          }
          std::ranges::copy(piece->bytes,
                            into[i].begin() + static_cast<std::ptrdiff_t>(piece->offset));
          pair.recv->release(*piece);
        }
      }
    };
    while (into.size() < messages.size() || !streams[0].empty() || !streams[1].empty()) {
      const std::uint64_t drawn = rng.below(6);
      if (drawn < 2) {
        if (into.size() == messages.size()) {
          continue;
        }
        Bytes& added = into.emplace_back(messages[into.size()].size());
        is_lent.push_back(drawn == 0);
        (void)must(is_lent.back() ? pair.recv->irecv_fragments(added.size())
                                  : pair.recv->irecv(added));
      } else if (drawn < 4) {
        Bytes& stream = streams[drawn - 2];
        const std::size_t part = std::min<std::size_t>(rng.below(4000), stream.size());
        (drawn == 2 ? first : second).send(std::span(stream).first(part));
        stream.erase(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(part));
      } else if (drawn == 4) {
        take();
      } else {
        bool moved = false;
        expect_polls(*pair.b, moved);
      }
    }
    if (seed % 2 == 0) {
      first.close();
      second.close();
    }
    ASSERT_TRUE(drive({pair.b.get()}, [&] {
      take();
      for (RequestId i = 0; i < messages.size(); ++i) {
        if (!must(pair.recv->test(i))) {
          return false;
        }
      }
      return true;
    }));
    EXPECT_TRUE(into == messages);
  }
}

}  // namespace
}  // namespace lightcc::tcp_receiver_test
