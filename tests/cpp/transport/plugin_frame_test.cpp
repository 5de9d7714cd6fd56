// Handles and hellos come back as they went out, and nothing else is taken for one; messages of
// different lengths never have the same pieces.
#include "lightcc/transport/plugin/plugin_frame.hpp"

#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::plugin_frame_test {
namespace {

const std::string kSecret = "a secret";

PluginHandle a_handle() {
  PluginHandle handle;
  handle.world_id = 0x0123456789abcdef;
  handle.nonce[3] = std::byte{7};
  handle.piece_bytes = kPieceBytes;
  handle.plugin = "HARP";
  handle.handle.fill(std::byte{0x5a});
  return handle;
}

ChannelHello a_hello() {
  ChannelHello hello;
  hello.world_id = 9;
  hello.attempt = 3;
  hello.channel = {.source = 1, .destination = 2, .process_set = 3, .lane = 4};
  hello.index = 2;
  hello.count = 5;
  hello.piece_bytes = 4096;
  return hello;
}

TEST(PluginFrameTest, a_handle_comes_back_and_fits_its_limit) {
  PluginHandle handle = a_handle();
  handle.plugin = std::string(32, 'x');
  const TransportHandle bytes = encode_plugin_handle(handle);
  EXPECT_LE(bytes.size(), 190U);
  const auto back = decode_plugin_handle(bytes);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back.value().world_id, handle.world_id);
  EXPECT_EQ(back.value().nonce, handle.nonce);
  EXPECT_EQ(back.value().piece_bytes, handle.piece_bytes);
  EXPECT_EQ(back.value().plugin, handle.plugin);
  EXPECT_EQ(back.value().handle, handle.handle);
}

TEST(PluginFrameTest, every_cut_or_lengthened_handle_is_refused) {
  TransportHandle bytes = encode_plugin_handle(a_handle());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_EQ(decode_plugin_handle(std::span(bytes).first(length)).status().code(),
              ErrorCode::kInvalidArgument);
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_plugin_handle(bytes).ok());
}

TEST(PluginFrameTest, a_handle_with_an_impossible_piece_is_refused) {
  for (const std::uint32_t bytes : {0U, 63U, 65U, static_cast<std::uint32_t>(kPieceBytes) + 64U}) {
    PluginHandle handle = a_handle();
    handle.piece_bytes = bytes;
    EXPECT_FALSE(decode_plugin_handle(encode_plugin_handle(handle)).ok()) << bytes;
  }
}

TEST(PluginFrameTest, a_hello_comes_back_under_its_secret_and_nonce_only) {
  const ListenNonce nonce{std::byte{1}, std::byte{2}};
  const PluginHelloBytes bytes = encode_plugin_hello(a_hello(), kSecret, nonce);
  const auto back = decode_plugin_hello(bytes, kSecret, nonce);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_TRUE(back.value() == a_hello());
  EXPECT_EQ(decode_plugin_hello(bytes, "another", nonce).status().code(), ErrorCode::kPeerFailed);
  EXPECT_FALSE(decode_plugin_hello(bytes, kSecret, ListenNonce{}).ok());
}

TEST(PluginFrameTest, a_hello_with_any_bit_flipped_is_refused) {
  const ListenNonce nonce{};
  for (std::size_t bit = 0; bit < 8 * kPluginHelloBytes; ++bit) {
    PluginHelloBytes bytes = encode_plugin_hello(a_hello(), kSecret, nonce);
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(decode_plugin_hello(bytes, kSecret, nonce).ok()) << bit;
  }
}

TEST(PluginFrameTest, a_proven_hello_must_still_make_sense) {
  const ListenNonce nonce{};
  const auto is_taken = [&](const ChannelHello& hello) {
    return decode_plugin_hello(encode_plugin_hello(hello, kSecret, nonce), kSecret, nonce).ok();
  };
  ChannelHello hello = a_hello();
  hello.count = 0;
  EXPECT_FALSE(is_taken(hello));
  hello = a_hello();
  hello.count = kMaxConnections + 1;
  EXPECT_FALSE(is_taken(hello));
  hello = a_hello();
  hello.index = hello.count;
  EXPECT_FALSE(is_taken(hello));
  hello = a_hello();
  hello.piece_bytes = 100;
  EXPECT_FALSE(is_taken(hello));
}

TEST(PluginFrameTest, messages_of_different_lengths_have_different_pieces) {
  constexpr Cut kCut = piece_cut(64);
  const auto pieces_of = [&](std::size_t total) {
    std::vector<std::size_t> pieces;
    for (PieceCursor next; next.message() == 0; next.step(kCut, total)) {
      pieces.push_back(kCut.length(total, next.offset()));
    }
    return pieces;
  };
  for (std::size_t sent = 0; sent < 300; ++sent) {
    const auto one = pieces_of(sent);
    for (std::size_t expected = 0; expected < 300; ++expected) {
      const auto other = pieces_of(expected);
      // The first difference is within the shorter list: nobody waits for a piece that never comes.
      const std::size_t common = std::min(one.size(), other.size());
      const bool same =
          std::equal(one.begin(), one.begin() + static_cast<long>(common), other.begin());
      EXPECT_EQ(same, sent == expected) << sent << " " << expected;
    }
  }
}

TEST(PluginFrameTest, what_is_registered_holds_the_piece_and_fits_an_int) {
  constexpr std::size_t kPiece = 64;
  std::vector<std::byte> message(3 * kMaxRegisteredPieces * kPiece / 2 + 5);
  for (std::size_t offset = 0; offset < message.size(); offset += kPiece) {
    const std::span piece =
        std::span(message).subspan(offset, piece_cut(kPiece).length(message.size(), offset));
    const std::span registered = registered_part(std::span(message), offset, kPiece);
    EXPECT_GE(piece.data(), registered.data());
    EXPECT_LE(piece.data() + piece.size(), registered.data() + registered.size());
    EXPECT_LE(registered.size(), kMaxRegisteredPieces * kPiece);
  }
  static_assert(kMaxRegisteredPieces * kPieceBytes < (std::size_t{1} << 31));
}

}  // namespace
}  // namespace lightcc::plugin_frame_test
