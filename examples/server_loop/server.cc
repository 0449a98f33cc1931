#include "server_loop/server.h"

#include <algorithm>
#include <utility>

#include "host/sampling.h"

namespace moert::server {
namespace {

double MsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace

absl::Status InterruptibleRunner::BeginStep(host::StepPhase phase, const host::StepRows& rows) {
  const std::lock_guard lock(mutex_);
  absl::Status status = EngineRunner::BeginStep(phase, rows);
  open_ = status.ok();
  return status;
}

absl::Status InterruptibleRunner::EndStep() {
  {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  return EngineRunner::EndStep();
}

void InterruptibleRunner::Interrupt() {
  const std::lock_guard lock(mutex_);
  if (open_) engine_->CancelStep(step()).IgnoreError();  // never blocks
}

Server::Server(host::Decoder* decoder, InterruptibleRunner* runner, ServerOptions options)
    : decoder_(decoder), runner_(runner), options_(std::move(options)) {
  logits_.resize(decoder->config().vocab_size);
  thread_ = std::thread([this] { Loop(); });
}

void Server::Submit(Request request) {
  auto sequence = std::make_unique<Sequence>();
  sequence->submitted = Clock::now();
  sequence->reply.id = request.id;
  sequence->request = std::move(request);
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(sequence));
  changed_.notify_one();
}

void Server::Cancel(int64_t id) {
  bool interrupt = false;
  {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(id);
    interrupt = in_prefill_.count(id) != 0;
  }
  // If that step has ended meanwhile, the next one is interrupted and repeated, which is harmless.
  if (interrupt) runner_->Interrupt();
}

void Server::Drain() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

Server::Counters Server::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void Server::Loop() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return draining_ || !waiting_.empty() || !running_.empty(); });
      if (draining_ && waiting_.empty() && running_.empty()) return;
    }
    DropCancelledAndAdmit();
    Prefill();
    Decode();
    std::erase_if(running_, [](const auto& s) { return s == nullptr; });
  }
}

void Server::DropCancelledAndAdmit() {
  std::set<int64_t> gone;
  std::vector<std::unique_ptr<Sequence>> dropped;
  {
    const std::lock_guard lock(mutex_);
    gone.swap(cancelled_);
    for (auto& sequence : waiting_) {
      if (gone.count(sequence->request.id) != 0) dropped.push_back(std::move(sequence));
    }
    std::erase(waiting_, nullptr);
  }
  for (auto& sequence : dropped) Finish(sequence.get(), absl::CancelledError("while waiting"));
  for (auto& sequence : running_) {
    if (gone.count(sequence->request.id) == 0) continue;
    Finish(sequence.get(), absl::CancelledError("while running"));
    sequence = nullptr;
  }
  std::erase(running_, nullptr);
  const std::lock_guard lock(mutex_);
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < options_.max_sequences) {
    std::unique_ptr<Sequence> sequence = std::move(waiting_.front());
    waiting_.pop_front();
    sequence->reply.queue_ms = MsSince(sequence->submitted);
    sequence->cache = decoder_->MakeSequence(static_cast<int64_t>(sequence->request.prompt.size()) +
                                             sequence->request.max_tokens);
    running_.push_back(std::move(sequence));
  }
}

bool Server::RunStep(host::StepPhase phase, const std::vector<Sequence*>& members,
                     const std::vector<host::SequenceInput>& inputs) {
  const bool prefill = phase == host::StepPhase::kPrefill;
  {
    const std::lock_guard lock(mutex_);
    for (const Sequence* s : members) {
      if (prefill) in_prefill_.insert(s->request.id);
      // Cancelled before it was in in_prefill_: Cancel did not interrupt the step for it.
      if (cancelled_.count(s->request.id) != 0) {
        in_prefill_.clear();
        return false;
      }
    }
  }
  const absl::Status status = decoder_->Step(phase, inputs, &hidden_);
  {
    const std::lock_guard lock(mutex_);
    in_prefill_.clear();
    if (prefill) ++counters_.prefills;
    if (!prefill) ++counters_.decodes;
    if (!prefill) counters_.decoded_rows += static_cast<int64_t>(members.size());
    if (absl::IsCancelled(status)) ++counters_.interrupted;
  }
  if (status.ok()) return true;
  if (absl::IsCancelled(status)) return false;  // the caches are as before: it is repeated
  for (auto& sequence : running_) {
    if (std::find(members.begin(), members.end(), sequence.get()) == members.end()) continue;
    Finish(sequence.get(), status);
    sequence = nullptr;
  }
  return false;
}

void Server::Prefill() {
  std::vector<Sequence*> members;
  std::vector<host::SequenceInput> inputs;
  int64_t rows = 0;
  for (auto& s : running_) {
    const int64_t left = static_cast<int64_t>(s->request.prompt.size()) - s->prefilled;
    const int64_t take = std::min(left, options_.max_prefill_rows - rows);
    if (take <= 0) continue;
    rows += take;
    members.push_back(s.get());
    inputs.push_back({s->cache.get(), s->request.id,
                      absl::MakeConstSpan(s->request.prompt).subspan(s->prefilled, take)});
  }
  if (members.empty() || !RunStep(host::StepPhase::kPrefill, members, inputs)) return;
  int64_t row = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    row += static_cast<int64_t>(inputs[i].tokens.size());
    members[i]->prefilled += static_cast<int64_t>(inputs[i].tokens.size());
    if (members[i]->prefilled < static_cast<int64_t>(members[i]->request.prompt.size())) continue;
    TakeToken(members[i], hidden_.data() + (row - 1) * decoder_->config().hidden_size);
  }
}

void Server::Decode() {
  std::vector<Sequence*> members;
  std::vector<host::SequenceInput> inputs;
  for (auto& s : running_) {
    if (s == nullptr || s->reply.tokens.empty()) continue;
    members.push_back(s.get());
    inputs.push_back({s->cache.get(), s->request.id, {&s->reply.tokens.back(), 1}});
  }
  if (members.empty() || !RunStep(host::StepPhase::kDecode, members, inputs)) return;
  for (size_t i = 0; i < members.size(); ++i) {
    TakeToken(members[i], hidden_.data() + i * decoder_->config().hidden_size);
  }
}

void Server::TakeToken(Sequence* sequence, const float* hidden) {
  decoder_->Logits(hidden, 1, logits_.data());
  const auto token = host::ArgMax(logits_);
  Reply& reply = sequence->reply;
  if (reply.tokens.empty()) reply.ttft_ms = MsSince(sequence->submitted);
  if (!reply.tokens.empty()) reply.gap_ms.push_back(MsSince(sequence->last_token));
  sequence->last_token = Clock::now();
  if (token.ok()) reply.tokens.push_back(*token);
  const bool full = static_cast<int64_t>(reply.tokens.size()) == sequence->request.max_tokens;
  if (token.ok() && !full) return;
  Finish(sequence, token.status());
  for (auto& s : running_) {
    if (s.get() == sequence) s = nullptr;
  }
}

void Server::Finish(Sequence* sequence, absl::Status status) {
  sequence->reply.status = std::move(status);
  options_.on_reply(std::move(sequence->reply));
}

}  // namespace moert::server
