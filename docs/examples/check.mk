# For a Makefile: `make -f check.mk` checks the copy, and records the base once. Put your own model,
# weights and data in place of these. `check.md` is written whatever the verdict, and the target
# fails unless the copy passes.
.PHONY: check
check: base.rsm
	resemblance check base.rsm torchvision:resnet18 --copy-weights int8.safetensors \
	    --data validation/ --thresholds thresholds.toml --markdown check.md

base.rsm: base.safetensors
	resemblance record --model torchvision:resnet18 --weights base.safetensors \
	    --data validation/ -o $@
