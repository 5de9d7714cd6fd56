#include "lightcc/engine/autotune_log.hpp"

#include "lightcc/base/log.hpp"
#include "lightcc/fusion/strategy.hpp"

namespace lightcc {

AutotuneLog::AutotuneLog(const std::string& path) {
  if (path.empty()) {
    return;
  }
  file_.open(path, std::ios::out | std::ios::trunc);
  if (!file_.good()) {
    LIGHTCC_LOG(LogLevel::kWarning,
                "HOROVOD_AUTOTUNE_LOG=\"%s\": the file cannot be written",
                path.c_str());
    return;
  }
  file_.imbue(std::locale::classic());
  file_ << "fusion_strategy,tensor_fusion_threshold,num_streams,chunk_bytes,score\n" << std::flush;
}

void AutotuneLog::write(const Autotuner::Sample& sample) {
  if (file_.is_open()) {
    const Tuning& t = sample.tuning;
    file_ << fusion_rule_name(t.rule) << ',' << t.threshold_bytes << ',' << t.lanes << ','
          << t.chunk_bytes << ',' << sample.score << '\n'
          << std::flush;
  }
}

}  // namespace lightcc
