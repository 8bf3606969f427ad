"""Movement pruning against an implementation of the paper that shares nothing with it."""

from types import SimpleNamespace

import torch
from torch.func import functional_call

from espalier import sites
from espalier.testing.tiny import tiny
from espalier.training import Movement

STEPS, LR, SCORE_LR, REMOVE = 12, 1e-3, 1e-2, 0.6


class Top(torch.autograd.Function):
    """A mask of the highest scores; the gradient passes straight through it."""

    @staticmethod
    def forward(ctx, score, lowest):
        return (score > lowest).to(score.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def batch(step):
    draw = torch.Generator().manual_seed(step)
    ids = torch.randint(4, 60, (8, 9), generator=draw)
    return {"input_ids": ids, "labels": (ids[:, 1] > 30).long()}


def small():
    model = tiny("bert", "AutoModelForSequenceClassification", num_labels=2).double().train()
    model.config.hidden_dropout_prob = 0.0
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def by_the_paper():
    """W' = W ⊙ Top(S), S and W learned by autograd; return W' and how many masks a weight came back in."""
    model = small()
    weights = {id(site.linear.weight) for site in sites(model, "weights")}
    names = [name for name, p in model.named_parameters() if id(p) in weights]
    latent = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    scores = {name: torch.zeros_like(latent[name], requires_grad=True) for name in names}
    groups = [{"params": list(latent.values())}]
    groups += [{"params": list(scores.values()), "lr": SCORE_LR, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, weight_decay=0.01)
    end, back = STEPS // 2, 0
    masks = {name: torch.ones_like(t) for name, t in scores.items()}
    for step in range(STEPS + 1):
        remove = REMOVE * min(1, step / end)
        every = torch.cat([t.detach().flatten() for t in scores.values()])
        count = round(remove * len(every))
        lowest = every.sort().values[count - 1] if count else -torch.inf
        new = {name: Top.apply(t, lowest) for name, t in scores.items()}
        back += sum(int(((m == 0) & (new[name] == 1)).sum()) for name, m in masks.items())
        masks = {name: m.detach() for name, m in new.items()}
        used = {name: p * new[name] if name in new else p for name, p in latent.items()}
        if step == STEPS:
            break
        functional_call(model, used, (), batch(step)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: used[name].detach() for name in names}, back


def test_movement_is_that_of_the_paper():
    model, callback = (
        small(),
        Movement(REMOVE, schedule="linear", until=0.5, mask_interval=1, score_lr=SCORE_LR),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)
    run = SimpleNamespace(
        model=model,
        optimizer=optimizer,
        step=0,
        total_steps=STEPS,
        settings={"lr": LR},
        trainable={},
        accelerator=SimpleNamespace(device=torch.device("cpu")),
    )
    callback.on_start(run)
    optimizer.param_groups[1]["lr"] = SCORE_LR
    for step in range(STEPS):
        model(**batch(step)).loss.backward()
        callback.after_backward(run)
        optimizer.step()
        optimizer.zero_grad()
        run.step = step + 1
        callback.after_step(run)
    want, back = by_the_paper()
    got = {name: p.detach() for name, p in model.named_parameters() if name in want}
    callback.on_end()
    assert back > 100  # removed weights come back, so the scores of removed ones are learned
    removed = sum(int((t == 0).sum()) for t in got.values())
    assert removed == round(REMOVE * sum(t.numel() for t in got.values()))
    for name, t in want.items():
        assert torch.equal(got[name] == 0, t == 0), name
        torch.testing.assert_close(got[name], t, rtol=1e-9, atol=1e-12)
