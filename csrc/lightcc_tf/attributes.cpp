#include "attributes.hpp"

#include <charconv>
#include <cstddef>
#include <string_view>
#include <system_error>
#include <utility>

namespace lightcc::tf {
namespace {

Status bad_attribute(const char* attribute, const char* problem) {
  return make_error(ErrorCode::kInvalidArgument, "attribute %s: %s", attribute, problem);
}

Status check(const CallStatus& status, const char* attribute) {
  return status.ok() ? Status()
                     : bad_attribute(attribute, status.to_status("read").message().c_str());
}

Result<bool> read_bool(KernelConstruction* node, const char* attribute) {
  CallStatus status;
  unsigned char value = 0;
  api().bool_attribute(node, attribute, &value, status.get());
  LIGHTCC_RETURN_IF_ERROR(check(status, attribute));
  return value != 0;
}

// Attributes that TensorFlow calls float have 32 bits, so that factors are texts.
Result<double> read_number(KernelConstruction* node, const char* attribute) {
  LIGHTCC_ASSIGN_OR_RETURN(const std::string text, read_text(node, attribute));
  double value = 0.0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) {
    return bad_attribute(attribute, ("'" + text + "' is no number").c_str());
  }
  return value;
}

Result<std::vector<std::string>> read_texts(KernelConstruction* node, const char* attribute) {
  CallStatus status;
  std::int32_t count = 0;
  std::int32_t bytes = 0;
  api().attribute_size(node, attribute, &count, &bytes, status.get());
  LIGHTCC_RETURN_IF_ERROR(check(status, attribute));
  if (count <= 0) {
    return std::vector<std::string>();
  }
  std::vector<char*> starts(static_cast<std::size_t>(count));
  std::vector<std::size_t> lengths(starts.size());
  std::string storage(static_cast<std::size_t>(bytes), '\0');
  api().text_list_attribute(node,
                            attribute,
                            starts.data(),
                            lengths.data(),
                            count,
                            storage.data(),
                            storage.size(),
                            status.get());
  LIGHTCC_RETURN_IF_ERROR(check(status, attribute));
  std::vector<std::string> texts;
  texts.reserve(starts.size());
  for (std::size_t i = 0; i < starts.size(); ++i) {
    texts.emplace_back(starts[i], lengths[i]);
  }
  return texts;
}

// naming: "counted": by the engine; "given": tensor_name; "node": the node's name; "node_base":
// what follows its last slash.
Result<std::optional<std::string>> read_name(KernelConstruction* node) {
  LIGHTCC_ASSIGN_OR_RETURN(const std::string naming, read_text(node, "naming"));
  if (naming == "counted") {
    return std::optional<std::string>();
  }
  if (naming == "given") {
    LIGHTCC_ASSIGN_OR_RETURN(std::string name, read_text(node, "tensor_name"));
    return std::optional(std::move(name));
  }
  const TextView view = api().node_name(node);
  const std::string_view name(view.data, view.length);
  if (naming == "node") {
    return std::optional(std::string(name));
  }
  return std::optional(std::string(name.substr(name.rfind('/') + 1)));
}

Status read_reduction(KernelConstruction* node, Signature& signature) {
  LIGHTCC_ASSIGN_OR_RETURN(const std::int64_t op, read_integer(node, "reduce_op"));
  if (op < 0 || op >= kReduceOpCount) {
    return bad_attribute("reduce_op", "allowed are the numbers of Average to Product, 0 to 5");
  }
  signature.reduce_op = static_cast<ReduceOp>(op);
  LIGHTCC_ASSIGN_OR_RETURN(signature.prescale, read_number(node, "prescale_factor"));
  LIGHTCC_ASSIGN_OR_RETURN(signature.postscale, read_number(node, "postscale_factor"));
  return {};
}

// topk_ratio is "0" where top-k is not asked for, and quantize_bits is 0 where that is not.
Status read_compression(KernelConstruction* node, Signature& signature) {
  CompressionSpec spec;
  LIGHTCC_ASSIGN_OR_RETURN(const std::int64_t bits, read_integer(node, "quantize_bits"));
  if (compressor_of(bits) != Compressor::kTopk) {
    signature.compression = CompressionSpec{.compressor = compressor_of(bits)};
    return {};
  }
  if (bits != 0) {
    return bad_attribute("quantize_bits", "allowed are 8, 4, and 0 for none");
  }
  LIGHTCC_ASSIGN_OR_RETURN(spec.ratio, read_number(node, "topk_ratio"));
  if (spec.ratio == 0.0) {
    return {};
  }
  LIGHTCC_ASSIGN_OR_RETURN(spec.momentum, read_number(node, "topk_momentum"));
  LIGHTCC_ASSIGN_OR_RETURN(const std::int64_t steps, read_integer(node, "topk_warmup_steps"));
  LIGHTCC_ASSIGN_OR_RETURN(spec.fp16, read_bool(node, "topk_fp16"));
  LIGHTCC_ASSIGN_OR_RETURN(spec.exact, read_bool(node, "topk_exact"));
  spec.warmup_steps = static_cast<std::uint32_t>(steps);
  if (!spec.is_valid() || steps < 0) {
    return bad_attribute("topk_ratio", "this, topk_momentum or topk_warmup_steps is out of range");
  }
  signature.compression = spec;
  return {};
}

Status read_fusion(KernelConstruction* node, Signature& signature) {
  LIGHTCC_ASSIGN_OR_RETURN(const std::int64_t rule, read_integer(node, "fusion_rule"));
  LIGHTCC_ASSIGN_OR_RETURN(const std::int64_t limit, read_integer(node, "fusion_limit"));
  if (rule < 0 || rule >= kFusionRuleCount || limit < 0) {
    return bad_attribute("fusion_rule", "it or fusion_limit is out of range");
  }
  signature.fusion = {static_cast<FusionRule>(rule), static_cast<std::uint64_t>(limit)};
  return {};
}

Status read_list(KernelConstruction* node, Collective& collective) {
  LIGHTCC_ASSIGN_OR_RETURN(collective.names, read_texts(node, "names"));
  LIGHTCC_ASSIGN_OR_RETURN(const bool together, read_bool(node, "together"));
  if (!together) {
    collective.grouping = Grouping::kNone;
  } else {
    collective.grouping = collective.names.empty() ? Grouping::kOneName : Grouping::kNamedMembers;
  }
  return {};
}

}  // namespace

Result<std::string> read_text(KernelConstruction* node, const char* attribute) {
  CallStatus status;
  std::int32_t count = 0;
  std::int32_t bytes = 0;
  api().attribute_size(node, attribute, &count, &bytes, status.get());
  LIGHTCC_RETURN_IF_ERROR(check(status, attribute));
  std::string text(static_cast<std::size_t>(bytes < 0 ? 0 : bytes), '\0');
  api().text_attribute(node, attribute, text.data(), text.size(), status.get());
  LIGHTCC_RETURN_IF_ERROR(check(status, attribute));
  return text;
}

Result<std::int64_t> read_integer(KernelConstruction* node, const char* attribute) {
  CallStatus status;
  std::int64_t value = 0;
  api().integer_attribute(node, attribute, &value, status.get());
  LIGHTCC_RETURN_IF_ERROR(check(status, attribute));
  return value;
}

Result<Collective> read_collective(KernelConstruction* node,
                                   OpType op,
                                   bool is_list,
                                   bool is_tuned) {
  Collective collective;
  collective.is_tuned = is_tuned;
  Signature& signature = collective.prototype.request.signature;
  signature.op = op;
  if (op == OpType::kJoin) {
    return collective;
  }
  LIGHTCC_ASSIGN_OR_RETURN(const std::int64_t process_set, read_integer(node, "process_set_id"));
  if (process_set < 0 || process_set > UINT32_MAX) {
    return bad_attribute("process_set_id", "it is out of range");
  }
  signature.process_set = static_cast<std::uint32_t>(process_set);
  if (op == OpType::kBarrier) {
    return collective;
  }
  LIGHTCC_ASSIGN_OR_RETURN(collective.name, read_name(node));
  if (op == OpType::kAllgather) {
    LIGHTCC_ASSIGN_OR_RETURN(collective.prototype.sequence, read_text(node, "sequence"));
  }
  if (op == OpType::kBroadcast) {
    LIGHTCC_ASSIGN_OR_RETURN(const std::int64_t root, read_integer(node, "root_rank"));
    signature.root_or_peer = static_cast<std::int32_t>(root);
  }
  if (op == OpType::kAllreduce || op == OpType::kReducescatter) {
    LIGHTCC_RETURN_IF_ERROR(read_reduction(node, signature));
  }
  if (op == OpType::kAllreduce && !is_tuned) {
    LIGHTCC_RETURN_IF_ERROR(read_compression(node, signature));
  }
  if (op == OpType::kAllreduce) {
    LIGHTCC_RETURN_IF_ERROR(read_fusion(node, signature));
  }
  if (is_list) {
    LIGHTCC_RETURN_IF_ERROR(read_list(node, collective));
  }
  return collective;
}

}  // namespace lightcc::tf
