// A link whose transfers finish when the test says so.
#ifndef MOERT_TESTS_SUPPORT_HELD_QUEUE_H_
#define MOERT_TESTS_SUPPORT_HELD_QUEUE_H_

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "moert/source/expert_source.h"
#include "transfer/transfer_queue.h"

namespace moert::test {

/// A link on which nothing moves until it is told to.
class HeldQueue final : public TransferQueue {
 public:
  explicit HeldQueue(const ExpertSource* source) : source_(source) {}

  void Submit(const Transfer& transfer) override { waiting_.push_back(transfer); }
  void Raise(ExpertKey, int, LoadReason) override {}
  bool Cancel(ExpertKey, int) override { return false; }
  void Poll(std::vector<TransferDone>* done) override { *done = std::move(done_), done_.clear(); }
  bool Wait(std::vector<TransferDone>* done) override {
    if (done_.empty() && waiting_.empty()) return false;
    if (done_.empty()) Finish(last_first ? waiting_.size() - 1 : 0);
    Poll(done);
    return true;
  }
  /// Half the bytes of a transfer are there: whoever reads it now reads garbage.
  void Tear(size_t i) {
    const Transfer& t = waiting_.at(i);
    std::memset(t.dst.data(), 0xee, t.dst.size() / 2);
  }
  void Finish(size_t i) {
    const Transfer t = waiting_.at(i);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    done_.push_back({t.key, t.version,
                     source_->ReadRecord(t.key.layer, t.key.expert, t.source_version, t.dst),
                     t.bytes});
  }
  size_t waiting() const { return waiting_.size(); }
  const Transfer& transfer(size_t i) const { return waiting_.at(i); }

  bool last_first = false;

 private:
  const ExpertSource* source_;
  std::vector<Transfer> waiting_;
  std::vector<TransferDone> done_;
};

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_HELD_QUEUE_H_
