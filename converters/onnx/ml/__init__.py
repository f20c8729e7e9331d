"""The ops of ai.onnx.ml, as scikit-learn, LightGBM and XGBoost are exported to them."""

from __future__ import annotations

from trireme.converters.onnx.ml import features, linear, svm, trees
from trireme.converters.onnx.table import OpEntry

ML = "ai.onnx.ml"

ML_TABLE: dict[str, OpEntry] = {
    "ArrayFeatureExtractor": OpEntry("gather", features.array_feature_extractor),
    "Binarizer": OpEntry("greater", features.binarizer),
    "CategoryMapper": OpEntry("category_index", features.category_mapper),
    "FeatureVectorizer": OpEntry("concat", features.feature_vectorizer),
    "Imputer": OpEntry("where", features.imputer),
    "LabelEncoder": OpEntry("category_index", features.label_encoder),
    "LinearClassifier": OpEntry("matmul", linear.linear_classifier),
    "LinearRegressor": OpEntry("matmul", linear.linear_regressor),
    "Normalizer": OpEntry("div", features.normalizer),
    "OneHotEncoder": OpEntry("category_index", features.one_hot_encoder),
    "SVMClassifier": OpEntry("matmul", svm.svm_classifier),
    "SVMRegressor": OpEntry("matmul", svm.svm_regressor),
    "Scaler": OpEntry("mul", features.scaler),
    "TreeEnsemble": OpEntry("tree_ensemble", trees.tree_ensemble),
    "TreeEnsembleClassifier": OpEntry("tree_ensemble", trees.tree_classifier),
    "TreeEnsembleRegressor": OpEntry("tree_ensemble", trees.tree_regressor),
    "ZipMap": OpEntry("", features.zip_map),
}
