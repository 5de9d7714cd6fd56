#include "lightcc/engine/staged/staged_pieces.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::staged_pieces_test {
namespace {

std::vector<StagedBlock> cut(const std::vector<std::size_t>& tensor_bytes,
                             std::size_t element_bytes,
                             std::size_t piece_bytes) {
  std::vector<StagedPart> tensors;
  for (const std::size_t bytes : tensor_bytes) {
    tensors.push_back({.device = static_cast<std::int32_t>(tensors.size()), .bytes = bytes});
  }
  std::vector<StagedBlock> blocks;
  for (PieceCutter cutter(std::move(tensors), element_bytes, piece_bytes); !cutter.at_end();) {
    blocks.push_back(cutter.next());
  }
  return blocks;
}

std::vector<std::size_t> sizes(const std::vector<StagedBlock>& blocks) {
  std::vector<std::size_t> bytes;
  bytes.reserve(blocks.size());
  for (const StagedBlock& block : blocks) {
    bytes.push_back(block.bytes);
  }
  return bytes;
}

using Sizes = std::vector<std::size_t>;

TEST(PieceCutter, cuts_as_seldom_and_as_evenly_as_it_can) {
  EXPECT_EQ(sizes(cut({40}, 4, 40)), Sizes({40}));
  EXPECT_EQ(sizes(cut({40}, 4, 39)), Sizes({20, 20}));
  EXPECT_EQ(sizes(cut({40}, 4, 16)), Sizes({16, 16, 8}));
  EXPECT_EQ(sizes(cut({4}, 4, 1)), Sizes({4}));
  EXPECT_EQ(sizes(cut({24}, 8, 3)), Sizes({8, 8, 8}));  // An element at least.
  EXPECT_EQ(sizes(cut({}, 4, 16)), Sizes());
  EXPECT_EQ(sizes(cut({0, 0}, 4, 16)), Sizes());
}

TEST(PieceCutter, every_byte_is_in_one_part_and_parts_lie_side_by_side) {
  const Sizes tensors = {4, 0, 100, 12, 0, 4, 4, 36};
  for (std::size_t piece_bytes = 4; piece_bytes <= 164; piece_bytes += 4) {
    Sizes found(tensors.size());
    std::vector<std::byte> memory(200);
    std::vector<StagedPart> whole;
    for (const std::size_t bytes : tensors) {
      whole.push_back({.from = memory.data() + 7, .to = memory.data() + 9, .bytes = bytes});
      whole.back().device = static_cast<std::int32_t>(whole.size() - 1);
    }
    for (PieceCutter cutter(whole, 4, piece_bytes); !cutter.at_end();) {
      const StagedBlock block = cutter.next();
      EXPECT_LE(block.bytes, piece_bytes);
      std::size_t offset = 0;
      for (const StagedPart& part : block.parts) {
        const auto tensor = static_cast<std::size_t>(part.device);
        EXPECT_EQ(part.offset, offset);
        EXPECT_EQ(part.from, memory.data() + 7 + found[tensor]);
        EXPECT_EQ(part.to, memory.data() + 9 + found[tensor]);
        EXPECT_GT(part.bytes, 0U);
        found[tensor] += part.bytes;
        offset += part.bytes;
      }
      EXPECT_EQ(offset, block.bytes);
    }
    EXPECT_EQ(found, tensors) << piece_bytes;
  }
}

TEST(PieceCutter, what_is_not_there_stays_so) {
  for (const StagedBlock& block : cut({40, 24}, 4, 16)) {
    for (const StagedPart& part : block.parts) {
      EXPECT_EQ(part.from, nullptr);
      EXPECT_EQ(part.to, nullptr);
    }
  }
}

TEST(SliceCutter, gives_each_byte_of_each_member_once_and_in_its_place) {
  for (const Sizes& members : {Sizes{1000},
                               Sizes{70, 0, 930, 1},
                               Sizes{1, 1, 1},
                               Sizes{0, 0, 640},
                               Sizes{333, 333, 333}}) {
    const std::size_t all = std::accumulate(members.begin(), members.end(), std::size_t{0});
    for (std::size_t own = 0; own < members.size(); ++own) {
      for (const std::size_t piece_bytes : {std::size_t{1}, 128 * members.size(), all, all + 1}) {
        std::vector<std::byte> input(members[own] + 1);
        std::vector<std::byte> output(all);
        std::vector<int> written(all);
        std::size_t read = 0;
        SliceCutter cutter(
            members, own, {.from = input.data(), .to = output.data(), .device = 2}, piece_bytes);
        while (!cutter.at_end()) {
          const StagedBlock block = cutter.next();
          EXPECT_LE(block.bytes, std::max(piece_bytes, 128 * members.size()));
          ASSERT_EQ(block.parts.size(), members.size());
          std::size_t offset = 0;
          for (std::size_t member = 0; member < members.size(); ++member) {
            const StagedPart& part = block.parts[member];
            EXPECT_EQ(part.device, 2);
            EXPECT_EQ(part.offset, offset);
            offset += part.bytes;
            EXPECT_EQ(part.from, member == own ? input.data() + read : nullptr);
            read += member == own ? part.bytes : 0;
            for (std::size_t i = 0; i < part.bytes; ++i) {
              written.at(static_cast<std::size_t>(part.to - output.data()) + i) +=
                  static_cast<int>(member) + 1;
            }
          }
          EXPECT_EQ(offset, block.bytes);
        }
        EXPECT_EQ(read, members[own]);
        std::vector<int> expected;
        for (std::size_t member = 0; member < members.size(); ++member) {
          expected.insert(expected.end(), members[member], static_cast<int>(member) + 1);
        }
        EXPECT_EQ(written, expected);
      }
    }
  }
}

TEST(SliceCutter, what_is_in_its_place_is_not_copied_back) {
  std::vector<std::byte> output(8);
  SliceCutter cutter({4, 4}, 1, {.from = output.data() + 4, .to = output.data()}, 100);
  const StagedBlock block = cutter.next();
  EXPECT_EQ(block.parts[0].to, output.data());
  EXPECT_EQ(block.parts[1].to, nullptr);
  EXPECT_EQ(block.parts[1].from, output.data() + 4);
}

}  // namespace
}  // namespace lightcc::staged_pieces_test
