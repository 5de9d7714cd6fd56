#include "datapath/xdp/bpf_program.hpp"

#include <linux/bpf.h>
#include <linux/if_link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "datapath/address.hpp"
#include "datapath/frame.hpp"
#include "datapath/unique_fd.hpp"

namespace harp {
namespace {

constexpr std::uint32_t kPorts = 65536;
constexpr std::uint32_t kPiecesFlag = 1U << 5U;  // BPF_F_XDP_HAS_FRAGS, not in older headers.
constexpr std::int32_t kGetBufferLength = 188;   // bpf_xdp_get_buff_len(), Linux 5.18.

int bpf(bpf_cmd command, bpf_attr& attributes) {
  return static_cast<int>(::syscall(SYS_bpf, command, &attributes, sizeof(attributes)));
}

std::uint64_t pointer(const void* to) {
  return reinterpret_cast<std::uintptr_t>(to);
}

UniqueFd make_map(bpf_map_type type, std::uint32_t entries) {
  bpf_attr attributes{};
  attributes.map_type = type;
  attributes.key_size = sizeof(std::uint32_t);
  attributes.value_size = sizeof(std::uint32_t);
  attributes.max_entries = entries;
  return UniqueFd(bpf(BPF_MAP_CREATE, attributes));
}

bool set(int map, std::uint32_t key, std::uint32_t value) {
  bpf_attr attributes{};
  attributes.map_fd = static_cast<std::uint32_t>(map);
  attributes.key = pointer(&key);
  attributes.value = pointer(&value);
  return bpf(BPF_MAP_UPDATE_ELEM, attributes) == 0;
}

/// Instructions one after the other, and jumps to the end that are filled in when it is known.
class Assembler {
 public:
  using Register = std::uint8_t;

  // NOLINTBEGIN(misc-redundant-expression): some of the codes are zero
  void move(Register to, Register from) { add(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0); }
  void set(Register to, std::int32_t value) { add(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value); }
  void plus(Register to, std::int32_t value) { add(BPF_ALU64 | BPF_ADD | BPF_K, to, 0, 0, value); }
  void mask(Register to, std::int32_t value) { add(BPF_ALU64 | BPF_AND | BPF_K, to, 0, 0, value); }
  /// `width`: BPF_B, BPF_H or BPF_W.
  void load(int width, Register to, Register from, std::size_t offset) {
    add(BPF_LDX | BPF_MEM | width, to, from, static_cast<std::int16_t>(offset), 0);
  }
  void push_word(Register from, std::int16_t offset) {
    add(BPF_STX | BPF_MEM | BPF_W, kFrame, from, offset, 0);
  }
  void load_map(Register to, int map) {
    add(BPF_LD | BPF_DW | BPF_IMM, to, BPF_PSEUDO_MAP_FD, 0, map);
    add(0, 0, 0, 0, 0);
  }
  // NOLINTEND(misc-redundant-expression)
  void call(std::int32_t function) { add(BPF_JMP | BPF_CALL, 0, 0, 0, function); }
  void leave() { add(BPF_JMP | BPF_EXIT, 0, 0, 0, 0); }

  void pass_if_above(Register left, Register right) {
    jump(BPF_JMP | BPF_JGT | BPF_X, left, right, 0);
  }
  void pass_if_above_number(Register left, std::int32_t value) {
    jump(BPF_JMP | BPF_JGT | BPF_K, left, 0, value);
  }
  void pass_if(Register left, std::int32_t value) {
    jump(BPF_JMP | BPF_JEQ | BPF_K, left, 0, value);
  }
  /// Compares the lower 32 bits.
  void pass_unless(Register left, std::int32_t value) {
    jump(BPF_JMP32 | BPF_JNE | BPF_K, left, 0, value);
  }

  /// Ends with "pass": what all jumps lead to.
  const std::vector<bpf_insn>& finish() {
    for (const std::size_t at : jumps_) {
      code_[at].off = static_cast<std::int16_t>(code_.size() - at - 1);
    }
    set(0, XDP_PASS);
    leave();
    return code_;
  }

  static constexpr Register kFrame = 10;

 private:
  void add(int code, Register to, Register from, std::int16_t offset, std::int32_t value) {
    bpf_insn instruction{};
    instruction.code = static_cast<std::uint8_t>(code);
    instruction.dst_reg = to & 0xfU;
    instruction.src_reg = from & 0xfU;
    instruction.off = offset;
    instruction.imm = value;
    code_.push_back(instruction);
  }
  void jump(int code, Register left, Register right, std::int32_t value) {
    jumps_.push_back(code_.size());
    add(code, left, right, 0, value);
  }

  std::vector<bpf_insn> code_;
  std::vector<std::size_t> jumps_;
};

/// A field of a packet as the program sees it: loaded without a change of byte order.
std::int32_t stored(std::uint8_t first, std::uint8_t second) {
  return first | (second << 8);
}

/// Passes unless r2 points to a UDP packet to `address`; leaves its port, as stored, in r5.
void match_packet(Assembler& code, const Address& address) {
  const bool is_v4 = address.family == 4;
  constexpr std::size_t kIp = kEthernetBytes;
  code.load(BPF_H, 5, 2, kIp - 2);
  code.pass_unless(5, is_v4 ? stored(0x08, 0x00) : stored(0x86, 0xdd));
  if (is_v4) {
    code.load(BPF_B, 5, 2, kIp);
    code.pass_unless(5, 0x45);  // No options.
    code.load(BPF_H, 5, 2, kIp + 6);
    code.mask(5, stored(0x3f, 0xff));
    code.pass_unless(5, 0);  // No fragment.
  }
  code.load(BPF_B, 5, 2, kIp + (is_v4 ? 9 : 6));
  code.pass_unless(5, 17);  // UDP.
  for (std::size_t i = 0; i < (is_v4 ? 4U : 16U); i += 4) {
    std::int32_t word = 0;
    std::memcpy(&word, &address.ip[i], sizeof(word));
    code.load(BPF_W, 5, 2, kIp + (is_v4 ? 16 : 24) + i);
    code.pass_unless(5, word);
  }
  code.load(BPF_H, 5, 2, frame_header_bytes(address.family) - 6);
}

std::vector<bpf_insn> assemble(const BpfOptions& options, int ports, int sockets) {
  Assembler code;
  code.move(6, 1);
  if (options.has_pieces) {
    code.call(kGetBufferLength);
    code.pass_if_above_number(0, static_cast<std::int32_t>(kEthernetBytes + options.mtu_bytes));
  }
  code.load(BPF_W, 2, 6, offsetof(xdp_md, data));
  code.load(BPF_W, 3, 6, offsetof(xdp_md, data_end));
  code.move(4, 2);
  code.plus(4, static_cast<std::int32_t>(frame_header_bytes(options.address.family)));
  code.pass_if_above(4, 3);
  match_packet(code, options.address);

  code.push_word(5, -4);
  code.load_map(1, ports);
  code.move(2, Assembler::kFrame);
  code.plus(2, -4);
  code.call(BPF_FUNC_map_lookup_elem);
  code.pass_if(0, 0);
  code.load(BPF_W, 0, 0, 0);
  code.pass_if(0, 0);

  code.load(BPF_W, 2, 6, offsetof(xdp_md, rx_queue_index));
  code.load_map(1, sockets);
  code.set(3, XDP_PASS);  // Where the queue has no socket.
  code.call(BPF_FUNC_redirect_map);
  code.leave();
  return code.finish();
}

UniqueFd load(const std::vector<bpf_insn>& code, bool has_pieces, std::string& log) {
  constexpr std::array<char, 16> kName = {"harp_redirect"};
  log.assign(4096, '\0');
  bpf_attr attributes{};
  attributes.prog_type = BPF_PROG_TYPE_XDP;
  attributes.expected_attach_type = BPF_XDP;
  attributes.insns = pointer(code.data());
  attributes.insn_cnt = static_cast<std::uint32_t>(code.size());
  attributes.license = pointer("Apache-2.0");
  attributes.prog_flags = has_pieces ? kPiecesFlag : 0;
  attributes.log_buf = pointer(log.data());
  attributes.log_size = static_cast<std::uint32_t>(log.size());
  attributes.log_level = 1;
  std::memcpy(attributes.prog_name, kName.data(), kName.size());
  UniqueFd program(bpf(BPF_PROG_LOAD, attributes));
  log.resize(std::strlen(log.c_str()));
  return program;
}

}  // namespace

std::unique_ptr<BpfProgram> BpfProgram::attach(const BpfOptions& options, std::string* error) {
  const auto refuse = [&](const std::string& what) {
    const int code = errno;
    *error = "AF_XDP on " + options.interface + ": " + what + ": " +
             std::system_category().message(code);
    if (code == EPERM) {
      *error += " (needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW)";
    } else if (code == EBUSY) {
      *error += " (another XDP program is there; of the processes of a host one can have it)";
    }
    return nullptr;
  };
  std::unique_ptr<BpfProgram> made(new BpfProgram);
  made->ports_ = make_map(BPF_MAP_TYPE_ARRAY, kPorts);
  made->sockets_ = make_map(BPF_MAP_TYPE_XSKMAP, kMaxQueues);
  if (!made->ports_.is_open() || !made->sockets_.is_open()) {
    return refuse("no BPF map");
  }
  std::string log;
  made->program_ =
      load(assemble(options, made->ports_.get(), made->sockets_.get()), options.has_pieces, log);
  if (!made->program_.is_open()) {
    return refuse("the program is refused" + (log.empty() ? log : " (" + log + ")"));
  }
  for (const std::uint32_t mode : {XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE}) {
    bpf_attr attributes{};
    attributes.link_create.prog_fd = static_cast<std::uint32_t>(made->program_.get());
    attributes.link_create.target_ifindex = static_cast<std::uint32_t>(options.interface_index);
    attributes.link_create.attach_type = BPF_XDP;
    attributes.link_create.flags = mode;
    made->link_ = UniqueFd(bpf(BPF_LINK_CREATE, attributes));
    if (made->link_.is_open()) {
      return made;
    }
    if (errno == EPERM || errno == EBUSY) {
      break;
    }
  }
  return refuse("the program cannot be attached");
}

bool BpfProgram::set_port(std::uint16_t port, bool is_taken) {
  const auto key = static_cast<std::uint32_t>(
      stored(static_cast<std::uint8_t>(port >> 8U), static_cast<std::uint8_t>(port & 0xffU)));
  return set(ports_.get(), key, is_taken ? 1 : 0);
}

bool BpfProgram::set_socket(std::uint32_t queue, int socket) {
  return set(sockets_.get(), queue, static_cast<std::uint32_t>(socket));
}

}  // namespace harp
